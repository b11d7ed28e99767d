"""Embeds the images of a source into a folder, shard by shard, and continues where it stopped."""

import collections
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.errors import ScopeParamShapeError
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from big_align.config.components.transforms import check_repeatable, shape_of_image
from big_align.core.digests import fingerprint
from big_align.core.errors import UserError
from big_align.data.derived.derived_source import ChosenExamples
from big_align.data.examples import Example, Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS, Folder
from big_align.data.precomputed.shared_shards import SharedShards
from big_align.data.shard_offsets import ShardOffsets
from big_align.evaluators.embedder import Embedder
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.align import Align
from big_align.parallel.meshes import make_mesh, replicated
from big_align.weights.formats.pretrained import Pretrained

VERBS = {
    "embedding": ("embed_image",),
    "features": ("image_features",),
    "both": ("embed_image", "image_features"),
}
"""What an encoder returns, and the verbs of an objective that make it."""


class SourceEncoder(NamedTuple):
    """An image encoder, ready to embed on the devices of this process."""

    embedder: Embedder
    shape: tuple[int, ...]  # of its images, (height, width, 3)
    transform: str  # image operations that make them
    what: str  # a key of `VERBS`; "both" is side by side
    dim: int  # the width of what it returns
    weights: str  # a digest of its parameters
    widths: tuple[int, ...] = ()  # those of the parts of `dim`, if it has several
    architecture: str = ""  # a digest of what else its results depend on; "": known elsewhere

    def embed(
        self, batch: Mapping[str, np.ndarray], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Returns the rows of the first `count` images of a batch, and which images are real."""
        if self.what == "embedding":
            return self.embedder.embed_images([batch], count)
        if self.what == "features":
            return self.embedder.image_features([batch], count)
        *rows, readable = self.embedder.embeddings_and_features([batch], count)
        return np.concatenate(rows, axis=1), readable


def make_encoder(
    pretrained: Pretrained, what: str, transform: str | None, batch_size: int | None = None
) -> SourceEncoder:
    """Makes an encoder of images from a dual encoder or an image tower.

    It returns what `VERBS` says: an "embedding" has unit length, "features" are those of the image
    tower before any projection, and "both" are made in one pass over the images. Without image
    operations, it takes the model's own; without a batch size, 256, and 64 on CPUs.
    """
    if pretrained.kind == "text":
        raise UserError("the model is a tower for texts; an image encoder is needed")
    seen = pretrained.preprocessing
    if transform is None and seen is None:
        raise UserError("the model does not say how its images are preprocessed: give --transform")
    transform = transform or seen.transform
    mesh = make_mesh(1, jax.local_devices())
    model, variables = pretrained.model, dict(pretrained.variables)
    if pretrained.kind == "image":
        colors = {"image_mean": seen.mean, "image_std": seen.std} if seen else {}
        model = DualEncoder(image=model, **colors)
        variables = {kind: {"image": arrays} for kind, arrays in variables.items()}
    objective = Align(model, mesh)
    params, state = {"model": variables.pop("params")}, variables
    shape = shape_of_image(transform, "--transform")
    check_repeatable(transform, "--transform")
    batch_size = _choose_batch_size(mesh) if batch_size is None else batch_size
    if batch_size < 1:
        raise UserError(f"--batch_size={batch_size} must be at least 1")
    batch = {"image": jax.ShapeDtypeStruct((batch_size, *shape), np.uint8)}
    try:
        verbs = [getattr(objective, verb) for verb in VERBS[what]]
        shapes = [jax.eval_shape(verb, params, state, batch).shape for verb in verbs]
    except (ScopeParamShapeError, ValueError, TypeError) as error:
        raise UserError(
            f"the model cannot take images {list(shape)} as transform {transform!r} makes them "
            f"(its own are {pretrained.image_size} pixels): {str(error).splitlines()[0]}"
        ) from error
    widths = tuple(shape[1] for shape in shapes)
    return SourceEncoder(
        _place(objective, mesh, batch_size, params, state),
        shape, transform, what, sum(widths), digest_weights(pretrained.flat), widths,
        digest_architecture(pretrained),
    )  # fmt: skip


def _choose_batch_size(mesh: Mesh) -> int:
    """Returns rows that keep devices busy; on CPUs, layers of a larger batch outgrow the cache."""
    rows = 64 if mesh.devices.flat[0].platform == "cpu" else 256
    return -(-rows // mesh.size) * mesh.size


def _place(objective: Align, mesh: Mesh, batch_size: int, params: Any, state: Any) -> Embedder:
    try:
        embedder = Embedder(objective, mesh, batch_size)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    return embedder.use(*jax.device_put((params, state), replicated(mesh)))


def digest_weights(flat: Mapping[str, np.ndarray]) -> str:
    """Returns a text that changes with any weight; zeros of either sign count as the same."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        digest.update(f"{name} {flat[name].dtype} {flat[name].shape}".encode())
        values = np.ascontiguousarray(flat[name] + np.zeros((), flat[name].dtype))
        digest.update(values.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer of its own
    return digest.hexdigest()[:16]


def digest_architecture(pretrained: Pretrained) -> str:
    """Returns a text that changes with whatever embeddings depend on besides weights and inputs."""
    seen = pretrained.preprocessing if pretrained.kind == "image" else None
    described = [pretrained.node, [seen.mean, seen.std] if seen else None]
    return fingerprint(json.dumps(described, sort_keys=True, default=str), 16)


class KeyedSource(ChosenExamples):
    """A source that keeps the keys of what it reads."""

    def __init__(self, source: Source):
        super().__init__(source)
        self.shard_sizes, self.broken = source.shard_sizes, source.broken
        self._keys: dict[int, dict[int, str]] = {}

    def read(self, shard: int, index: int) -> Example:
        """Reads an example and keeps its key."""
        example = super().read(shard, index)
        self._keys.setdefault(shard, {})[index] = example.key
        return example

    def take_keys(self, shard: int) -> list[str]:
        """Returns the keys of a shard, "" for examples that were not read, and forgets them."""
        found = self._keys.pop(shard, {})
        return [found.get(index, "") for index in range(int(self.shard_sizes[shard]))]

    def _place(self, shard: int, index: int) -> int:
        return index


def embed_source(
    encoder: SourceEncoder,
    source: Source,
    folder: Folder,
    dtype: str = "float16",
    made_by: Mapping[str, Any] | None = None,
    max_broken_fraction: float = 0.01,
    **shared: Any,
) -> int:
    """Writes the embeddings of the shards that are not there yet, and that no other process makes.

    Any number of processes may do so at once, as `SharedWork` says, whose options `shared` are. A
    broken image is named in the log; it keeps its row, of zeros, with an empty key. `made_by` is
    what else identifies the embeddings; its `model` is only for readers.

    Returns how many images were embedded here and now, including broken ones.
    """
    shards = shard_files.list_shards(source)
    shard_files.claim_folder(
        folder, describe_folder(encoder, source, dtype, made_by), free=("model",)
    )
    count = 0
    with SharedShards(folder, shards, EMBEDDINGS, "image", **shared) as work:
        if not work.more():
            return 0
        keyed = KeyedSource(source)
        # if all may be broken, no image has to show their shape
        shape = encoder.shape if max_broken_fraction >= 1 else None
        loading = EvalLoader(
            keyed,
            encoder.transform,
            encoder.embedder.batch_size,
            max_broken_fraction=max_broken_fraction,
            image_shape=shape,
        )
        with loading as loader:
            while work.more():
                for part, rows in _embed(encoder, keyed, loader, dtype, work):
                    count += len(rows)
                    named = [shards[number] for number in part.shards]
                    cut = shard_files.cut_in_shards([rows], named)
                    for number, (_, values) in zip(part.shards, cut, strict=True):
                        there = values.any(axis=1).tolist()
                        present = zip(keyed.take_keys(number), there, strict=True)
                        keys = shard_files.join_keys(key if real else "" for key, real in present)
                        work.write(number, values, keys)
                    work.finish(part.unit)
    return count


def describe_folder(
    encoder: SourceEncoder, source: Source, dtype: str, made_by: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the index of a folder that `embed_source`, which takes the same, writes."""
    made = {"weights": encoder.weights, "what": encoder.what, "transform": encoder.transform}
    if encoder.architecture:
        made["architecture"] = encoder.architecture
    return {
        "dim": encoder.dim,
        "dtype": dtype,
        "unit_length": encoder.what == "embedding",
        "shards": [shard._asdict() for shard in shard_files.list_shards(source)],
        "made_by": {**(made_by or {}), **made},
    }


class _Part(NamedTuple):
    unit: int
    shards: list[int]  # of the unit, those that are missing
    numbers: Int[np.ndarray, " n"]  # of their examples in the source


def _embed(
    encoder: SourceEncoder, source: Source, loader: EvalLoader, dtype: str, work: SharedShards
) -> Iterator[tuple[_Part, Float[np.ndarray, "n d"]]]:
    """Yields what can be taken at once and its rows; the next part is read meanwhile."""
    ends = np.cumsum(source.shard_sizes)
    ahead: collections.deque[_Part] = collections.deque()

    def take() -> Iterator[Int[np.ndarray, " n"]]:
        for unit in work.take():
            if not (shards := work.list_missing(unit)):
                work.finish(unit)
                continue
            ranges = [np.arange(ends[n] - source.shard_sizes[n], ends[n]) for n in shards]
            ahead.append(_Part(unit, shards, np.concatenate(ranges)))
            yield ahead[-1].numbers

    rows: list[np.ndarray] = []
    done, size = 0, encoder.embedder.batch_size
    for batch in loader.images(take()):
        part = ahead[0]
        numbers = part.numbers[done : done + size]
        rows.append(_embed_batch(encoder, source, batch, numbers, dtype))
        work.advance(len(numbers))
        done += len(numbers)
        if done == len(part.numbers):
            yield ahead.popleft(), np.concatenate(rows)
            rows, done = [], 0


def _embed_batch(
    encoder: SourceEncoder,
    source: Source,
    batch: Mapping[str, np.ndarray],
    numbers: Int[np.ndarray, " n"],
    dtype: str,
) -> Float[np.ndarray, "n d"]:
    """Returns the rows of the examples of a batch as they are stored."""
    values, readable = encoder.embed(batch, len(numbers))
    with np.errstate(over="ignore"):
        stored = np.where(readable[:, None], values, 0).astype(dtype)
    strange = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    if len(strange):
        place = ShardOffsets(source.shard_sizes).locate_one(int(numbers[strange[0]]))
        fits = np.isfinite(values[strange[0]]).all()
        reason = "too large for float16: give --dtype=float32" if fits else "not finite"
        raise UserError(f"{source.name(*place)}: its {encoder.what} is {reason}")
    return stored
