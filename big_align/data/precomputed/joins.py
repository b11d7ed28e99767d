"""Precomputed fields of the examples of a source: clusters, embeddings, or captions' features.

They are in folders (`embedding_files`), with a file for each shard of the source, and are found by
the shard and the index in it. The key that the example had then must be its key now; one that could
not be read then has none, and is not compared.
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, Source
from big_align.data.precomputed import embedding_files
from big_align.data.precomputed.shard_files import Shard, list_shards

FOLDERS = {
    "clusters": embedding_files.ClusterFolder,
    "image_embedding": embedding_files.EmbeddingFolder,
    "text_embedding": embedding_files.CaptionFolder,
}
"""Precomputed fields of a batch, and the kinds of their folders."""

OPEN_KEYS = 128


def choose_captions(
    row: Shaped[np.ndarray, "n f"], captions: Sequence[str], texts: Sequence[str], count: int
) -> Shaped[np.ndarray, "k f"]:
    """Returns features of the drawn texts, then zeros; BrokenExample for one without features."""
    chosen = np.zeros((count, row.shape[1]), row.dtype)
    for place, text in enumerate(texts):
        number = captions.index(text) if text in captions else len(row)
        if number >= len(row):
            raise BrokenExample(
                f"there are features of {len(row)} captions, {text[:40]!r} not among them"
            )
        chosen[place] = row[number]
    return chosen


class Join:
    """The rows of a folder for the examples of a source; read at random and from several threads.

    A row has the type `dtype` and a `shape`: [p] clusters, [d] an embedding, or [k f] features of
    captions. The folder may have shards that the source lacks, but not lack one that it has.
    """

    def __init__(self, folder: embedding_files.ShardFolder, source: Source):
        self._folder = folder
        there = {shard.name: shard for shard in folder.shards}
        self._shards = [self._match(shard, there) for shard in list_shards(source)]
        first = next(shard for shard in self._shards if shard.count)
        self.shape, self.dtype = folder.array(first).shape[1:], folder.array(first).dtype
        self._has_clusters = isinstance(folder, embedding_files.ClusterFolder)
        self._keys = functools.lru_cache(maxsize=OPEN_KEYS)(self._read_keys)

    def _match(self, shard: Shard, there: dict[str, Shard]) -> Shard:
        found = there.get(shard.name)
        if found is None:
            have = ", ".join(itertools.islice(there, 3))
            raise UserError(
                f"{self._folder.path} has nothing for the shard {shard.name}; it has {have}"
                f"{', ...' if len(there) > 3 else ''}: embed and cluster the data that is trained"
            )
        if found.count != shard.count:
            raise UserError(
                f"{self._folder.path} has {found.count} examples of the shard {shard.name}, which "
                f"now has {shard.count}: embed the data again, with the source opened as here"
            )
        return found

    def _read_keys(self, shard: int) -> list[str]:
        return self._folder.keys(self._shards[shard])

    def read(self, shard: int, index: int, key: str) -> Shaped[np.ndarray, "..."]:
        """Reads the row of an example, which must be there, possible, and of the same key."""
        then = self._keys(shard)[index]
        if then and then != key:
            raise UserError(
                f"{self._folder.path}: example {index} of {self._shards[shard].name} was {then!r} "
                f"when it was embedded and is now {key!r}: embed the data again, or open the "
                "source with the arguments of then"
            )
        if not then and not self._has_clusters:
            raise BrokenExample("it could not be read when it was embedded")
        row = self._folder.array(self._shards[shard])[index]
        if self._has_clusters:
            if row.max() >= self._folder.k or row.min() < -1:
                raise BrokenExample(f"its clusters in {self._folder.path} are {row.tolist()}")
        elif not np.isfinite(row).all():
            raise BrokenExample(f"its embedding in {self._folder.path} is not finite")
        return row


def open_joins(paths: dict[str, str], source: Source) -> dict[str, Join]:
    """Opens the precomputed fields of a source, by the folder of each; "" leaves one out."""
    if unknown := sorted(paths.keys() - FOLDERS.keys()):
        raise UserError(f"{unknown[0]!r} is no precomputed field; known: {', '.join(FOLDERS)}")
    return {field: Join(FOLDERS[field](path), source) for field, path in paths.items() if path}
