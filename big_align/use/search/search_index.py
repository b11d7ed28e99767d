"""An index, ready to be searched: by texts, images, and sums and differences of them."""

import dataclasses
import functools
import math
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.core.errors import BrokenImages, UserError, suggest
from big_align.data.images import given_images
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel, load
from big_align.use.inference.ranking import check_count
from big_align.use.search import queries
from big_align.use.search.stores.store import CAPTIONS, IMAGES, KINDS, open_store

MOST = 10_000  # hits that can be asked for


@dataclasses.dataclass(frozen=True)
class Hit:
    """An image that was found, or a caption with an image that has it.

    Attributes:
      row: the row of the image.
      score: the cosine with the query.
      name: the name of the image: the path of its file, or its place in a shard.
      captions: the captions of the image; for a caption that was found, only this one.
      metadata: the metadata of the image, by column.
    """

    row: int
    score: float
    name: str
    captions: list[str]
    metadata: dict[str, Any]


class SearchIndex:
    """An index that is ready to be searched; `big_align.load_index` returns it.

    Its length is the number of images.

    Args:
      address: as `folder` of `big_align.load_index`.
      model: as there.

    Attributes:
      info: what the index says about itself, by name: the `model` and its digests, the `transform`
        of images, `dim`, the size of embeddings, and the number of `captions`.
      store: where its rows are.
    """

    def __init__(
        self, address: str | os.PathLike, model: str | os.PathLike | LoadedModel | None = None
    ):
        self._address, self._given = os.fspath(address), model
        self.store = open_store(address)
        self.info = self.store.info

    def __len__(self) -> int:
        return self.store.count(IMAGES)

    def __repr__(self) -> str:
        captions, dim = self.info["captions"], self.info["dim"]
        counts = f"{len(self)} images and {captions} captions, embeddings of {dim}"
        columns = f"; metadata: {', '.join(self.columns)}" if self.columns else ""
        return f"<{type(self).__name__} of {self._address}: {counts}{columns}>"

    @property
    def columns(self) -> list[str]:
        """The columns of metadata that filters compare."""
        return self.store.columns

    def search(
        self,
        texts: str | Sequence[str] = (),
        images: Any = (),
        *,
        like: Any = (),
        weights: Sequence[float | int] | None = None,
        k: int = 10,
        of: str = IMAGES,
        filters: str | Sequence[str] = (),
    ) -> list[Hit]:
        """Finds what is nearest to a sum of texts and images (ALIGN, Section 7).

        Args:
          texts: one or several; `-cars` subtracts.
          images: one or several, as `LoadedModel.embed_images` takes them.
          like: one image of the index or several, by names or rows.
          weights: those of the texts, then `images`, then `like`; below 0 subtracts. None weighs a
            text beside an image twice, as the paper does, and all else once.
          k: how many to find.
          of: "images" or "captions".
          filters: a condition on the metadata, such as "year>=2020", or several that all hold.

        Returns:
          The nearest first; fewer than `k` if no more meet the conditions.

        Raises:
          UserError: the query is empty or cancels itself, an image is broken, a name or a column
            is unknown, or the model is not that of the index.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        none = isinstance(images, list | tuple) and not images
        pictures = [] if none else given_images.check_images(images)
        rows = [self.find_row(name) for name in ([like] if np.ndim(like) == 0 else like)]
        chosen = queries.choose_weights(len(texts), len(pictures) + len(rows), weights)
        parts = [self.embed_text(text) for text in texts]
        try:
            parts += list(self.model.embed_images(pictures)) if pictures else []
        except BrokenImages as error:  # a search has no other way than to leave them out
            raise UserError(error.message) from error
        parts += [self.read_vector(row) for row in rows]
        return self.search_vector(queries.combine(np.stack(parts), chosen), k, of, filters)

    def search_vector(
        self,
        vector: Float[np.ndarray, "*one d"],
        k: int = 10,
        of: str = IMAGES,
        filters: str | Sequence[str] = (),
    ) -> list[Hit]:
        """Finds what is nearest to an embedding.

        Args:
          vector: an embedding of the model, [d] or [1 d], of any length.
          k: as in `search`.
          of: as in `search`.
          filters: as in `search`.

        Returns:
          The nearest first, as in `search`.

        Raises:
          UserError: the embedding has another size, or a column is unknown.
        """
        vector = queries.check_vector(vector, self.info["dim"])
        if of not in KINDS:
            raise UserError(f"of = {of!r} is neither 'images' nor 'captions'")
        k = check_count(k, MOST)
        if of == CAPTIONS and not self.store.count(CAPTIONS):
            raise UserError(f"{self._address} has no captions that can be searched")
        filters = [filters] if isinstance(filters, str) else filters
        found, scores = self.store.search(of, vector, k, filters)
        rows, texts = found[0].tolist(), None
        if of == CAPTIONS:
            having = self.store.read_captions(rows, filters)
            rows, texts = [row for row, _ in having], [[text] for _, text in having]
        images = self.store.read_images(rows)
        texts = texts or [image.captions for image in images]
        facts = zip(rows, scores[0].tolist(), images, texts, strict=True)
        return [
            Hit(row, score, image.name, captions, _leave_out_nan(image.metadata))
            for row, score, image, captions in facts
        ]

    def embed_text(self, text: str) -> Float[np.ndarray, "d"]:
        """Returns the embedding [d] of a text of a query; `-cars` is the opposite of `cars`."""
        words, sign = queries.split_sign(text)
        return sign * self._embed_words(words)

    def read_vector(self, row: int) -> Float[np.ndarray, "d"]:
        """Returns the embedding [d] of an image of the index, by its row."""
        return self.store.read_vector(row)

    def read_thumbnail(self, row: int) -> bytes:
        """Returns the JPEG of an image by its row; empty if thumbnails were not wanted."""
        return self.store.read_thumbnail(row)

    def find_row(self, name: Any) -> int:
        """Returns the row of an image by its name, a text or path, or checks a row.

        Raises:
          UserError: the index has no such image.
        """
        if not isinstance(name, str | os.PathLike):
            if not hasattr(name, "__index__") or not self.store.has_image(operator.index(name)):
                raise UserError(f"there is no image {name!r}; the index has {len(self)}")
            return operator.index(name)
        name = os.fspath(name)
        if (row := self.store.find_image(name)) is None:
            near = suggest(name, self.store.list_names(10_000))
            raise UserError(f"the index has no image {name!r}{near}; --image takes any file")
        return row

    def warm(self) -> None:
        """Loads what searches, which otherwise happens at the first search.

        From then on an update of the index changes nothing: what is loaded stays as it was.
        """
        self.store.warm()

    @functools.cached_property
    def model(self) -> LoadedModel:
        """The model that embeds queries; a UserError if it is not there or has changed."""
        model = self._given or self.info["model"]
        if not isinstance(model, LoadedModel):
            try:
                model = load(model, transform=self.info["transform"], progress=False)
            except FileNotFoundError as error:
                raise UserError(f"{error}; give the model of the index by --model") from error
        self._check("weights", digest_weights(model.flat))
        self._check("architecture", digest_architecture(model))
        self._check("transform", model.preprocessing and model.preprocessing.transform)
        return model

    def _check(self, what: str, digest: str | None) -> None:
        """Raises a UserError if the model differs; an index without texts has no `tokenizer`."""
        if digest != self.info.get(what, digest):
            given = isinstance(self._given, LoadedModel)
            model = "the given model" if given else self._given or self.info["model"]
            other = "other weights" if what == "weights" else f"another {what}"
            raise UserError(
                f"{model} has {other} than the model of {self._address}; build the index again, or "
                "give its model by --model, such as WORKDIR/checkpoints/STEP if the run went on"
            )

    @functools.cached_property
    def _embed_words(self) -> Any:
        model = self.model
        if model.embeds("text"):
            self._check("tokenizer", model.made_tokenizer.fingerprint)
        return functools.lru_cache(1024)(lambda words: model.embed_queries([words])[0])


def load_index(
    folder: str | os.PathLike, model: str | os.PathLike | LoadedModel | None = None
) -> SearchIndex:
    """Loads an index of images and captions, to be searched.

    Args:
      folder: the folder that `big-align index` wrote, or an address such as
        "lancedb:s3://bucket/index".
      model: the model of the index, or its present path; None looks where it was.

    Returns:
      The index; `search` takes texts, images, and sums and differences of them. The model is loaded
      at the first search.

    Raises:
      UserError: the folder is not an index, or is damaged.
    """
    return SearchIndex(folder, model)


def _leave_out_nan(metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns None for NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metadata.items()
    }
