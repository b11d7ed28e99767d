"""Fields of a batch that go with its examples: precomputed rows, and the tags of texts."""

import types
from collections.abc import Mapping, Sequence

import numpy as np

from big_align.data.examples import Example
from big_align.data.loading.stream import Location
from big_align.data.precomputed.joins import Join, choose_captions
from big_align.data.tags.tag_extraction import Tagger
from big_align.data.workers.batch_memory import Row

TEXTS = "text_embedding"
"""The field with the features of the drawn texts, chosen from those of all captions."""


class ExtraFields:
    """Looks up the precomputed fields of an example and finds the tags of its texts.

    Args:
      precomputed: clusters or embeddings, by their name in the batch.
      tagger: the batch then has `tags`, int32 [b t]; the true tags are those of all captions of an
        example, whether drawn from or not.
      texts: how many texts an example has; `text_embedding` has as many rows.
    """

    def __init__(
        self,
        precomputed: Mapping[str, Join] = types.MappingProxyType({}),
        tagger: Tagger | None = None,
        texts: int = 1,
    ):
        self._precomputed, self._tagger, self._texts = dict(precomputed), tagger, texts
        tags = tagger.shapes if tagger else {}
        self.row: Row = {
            **{name: (join.shape, join.dtype) for name, join in self._precomputed.items()},
            **{name: (shape, np.int32) for name, shape in tags.items()},
        }
        if TEXTS in self.row:
            (_, width), dtype = self.row[TEXTS]
            self.row |= {TEXTS: ((texts, width), dtype)}

    def read(
        self, location: Location, example: Example, texts: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Returns the fields of an example, given its drawn texts; raises BrokenExample."""
        fields = {name: j.read(*location, example.key) for name, j in self._precomputed.items()}
        if TEXTS in fields:
            drawn = choose_captions(fields[TEXTS], example.captions, texts, self._texts)
            fields |= {TEXTS: drawn}
        return fields | (self._tagger(texts, example.captions) if self._tagger else {})
