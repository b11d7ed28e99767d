"""Embeddings of images and texts, computed once per model and kept on disk.

A folder contains `images/DIGEST/`, a folder of `data/precomputed` for each set of images, and
`texts/DIGEST.npy`. A digest covers the weights, how images and texts are prepared, and the images
or token ids themselves, but not a benchmark. So benchmarks, tasks and outputs share the embeddings,
and none is ever used for the wrong input.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.core.regular_files import map_array
from big_align.data.derived.source_pieces import Pieces, fingerprint_images
from big_align.data.examples import Source
from big_align.data.images.same_images import HASH_BYTES, SameImages, find_firsts
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import (
    EMBEDDINGS,
    list_missing,
    list_shards,
    write_array,
)
from big_align.evaluators.embedder import Embedder
from big_align.runs.embedding.embed_source import (
    SourceEncoder,
    digest_weights,
    embed_source,
    make_encoder,
)
from big_align.use.inference.loaded_model import LoadedModel

TEXTS = 2048
"""Number of texts per file, and so the most that are lost when embedding is stopped."""
HASH_COLUMNS = HASH_BYTES // 2
"""A hash of pixels is stored as this many numbers below 2^16, which float32 holds exactly."""


class EmbeddedImages(NamedTuple):
    """All images of a source, in its order."""

    embedding: Float[np.ndarray, "n d"]  # of unit length
    features: Float[np.ndarray, "n f"]  # of the image tower
    first: Int[np.ndarray, "n"]  # the first example with the same image, for retrieval
    readable: Bool[np.ndarray, "n"]  # rows of others are zeros


class HashingEncoder(SourceEncoder):
    """An image encoder that also returns a hash of the pixels of each image."""

    def embed(
        self, batch: Mapping[str, np.ndarray], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Returns embeddings, features and hashes side by side, and which images are real."""
        rows = len(batch["mask"])
        same = SameImages(rows, rows, np.arange(rows))
        (seen,) = same.watch([dict(batch)])
        values, readable = super().embed(seen, count)
        numbers = same.hashes[:count].view(np.uint16).astype(np.float32)
        return np.concatenate([values, numbers], axis=1), readable


class EmbeddingStore:
    """Embeds with a model what is not on disk yet, and reads the rest from disk.

    A text tower alone embeds texts. Every process sees the folder, which is made if needed.

    Attributes:
      fingerprint: digest of the weights, and of the model's architecture and color normalization.
      transform: the image operations; None if the model has no image tower.
    """

    def __init__(
        self,
        model: LoadedModel,
        folder: str | os.PathLike,
        transform: str | None = None,
        batch_size: int | None = None,
        max_broken_fraction: float = 0.01,
    ):
        self._model, self._folder = model, pathlib.Path(folder)
        self.max_broken_fraction = max_broken_fraction
        self._encoder, self.transform = None, None
        if model.embeds("image"):
            encoder = make_encoder(model, "both", transform, batch_size)
            self._encoder = HashingEncoder(*encoder._replace(dim=encoder.dim + HASH_COLUMNS))
            self.transform, weights = encoder.transform, encoder.weights
        else:
            weights = digest_weights(model.flat)
        seen = model.preprocessing
        colors = (seen.mean, seen.std) if seen else None
        made = json.dumps([weights, model.node, colors], sort_keys=True, default=str)
        self.fingerprint = _digest(made.encode())

    @property
    def embedder(self) -> Embedder:
        """What embeds with the model, which has an image tower."""
        return self._encoder.embedder

    def find_folder(self, source: Source) -> pathlib.Path:
        """Returns the folder of the embeddings of a source."""
        key = f"{self.fingerprint} {self.transform} {fingerprint_images(source)}"
        return self._folder / "images" / _digest(key.encode())

    def count_missing(self, source: Source, folder: pathlib.Path) -> int:
        """Returns how many images of a source have no embedding in a folder yet."""
        missing = list_missing(folder, EMBEDDINGS, list_shards(Pieces(source)))
        return sum(shard.count for shard in missing)

    def embed(self, source: Source, folder: pathlib.Path) -> int:
        """Embeds the images that have no embedding in a folder yet, together with other processes.

        Returns how many of them this process has embedded in this call, when all are there.
        """
        fraction = self.max_broken_fraction
        return embed_source(
            self._encoder, Pieces(source), folder, "float32", max_broken_fraction=fraction
        )

    def read(self, source: Source, folder: pathlib.Path) -> EmbeddedImages:
        """Reads the embeddings of a source, all of which are there."""
        stored = EmbeddingFolder(folder)
        rows = stored.read(0, stored.count)
        keys = [key for shard in stored.shards for key in stored.keys(shard)]
        hashes = rows[:, -HASH_COLUMNS:].astype(np.uint16).view(np.uint8)
        dim = self._encoder.widths[0]
        readable = np.array([bool(key) for key in keys], bool)
        first = find_firsts(np.where(readable[:, None], hashes, 0).astype(np.uint8))
        return EmbeddedImages(rows[:, :dim], rows[:, dim:-HASH_COLUMNS], first, readable)

    def read_texts(self, texts: Sequence[str], what: str = "embedding") -> Float[np.ndarray, "n d"]:
        """Returns the rows of texts; those on disk are not computed again.

        They are the unit-length "embedding", or the "features" of the text tower before any
        projection.
        """
        starts = range(0, len(texts), TEXTS)
        return np.concatenate([self._read_part(texts[n : n + TEXTS], what) for n in starts])

    def _read_part(self, texts: Sequence[str], what: str) -> Float[np.ndarray, "n d"]:
        tokens = self._model.tokenize(list(texts))
        ids = b"".join(np.ascontiguousarray(x).tobytes() for x in tokens)
        shape = str([(x.shape, str(x.dtype)) for x in tokens])
        kind = "" if what == "embedding" else f"{what} "
        key = _digest(f"{self.fingerprint} {kind}{shape} ".encode() + ids)
        path = self._folder / "texts" / f"{key}.npy"
        if path.is_file():
            return np.array(map_array(path))
        if self._encoder is None:  # a text tower alone has no projection, so both are the same
            rows = self._model.tower("text").embed_texts(texts)
        else:
            embedder = self._encoder.embedder
            embed = {"embedding": embedder.embed_texts, "features": embedder.text_features}[what]
            rows = embed(*tokens)
        if not np.isfinite(rows).all():
            raise UserError("the embedding of a text is not finite; the model is broken")
        if jax.process_index() == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_array(path, rows)
        return rows


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
