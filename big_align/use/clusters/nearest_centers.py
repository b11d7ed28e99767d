"""The nearest of many centers by cosine: centers split over all devices, in blocks.

Every device holds its part of the centers. A chunk of rows is collected on all devices; each
compares it with its centers, a block at a time, keeping the best so far, and the best of all
devices are merged. Nothing of size rows x centers exists beyond one block.

Products are in float32, so the nearest are found exactly; or, with `candidates`, in bfloat16, which
matrix units multiply many times as fast. Then so many of the nearest are compared again in float32,
and only a center that is not among them is missed.
"""

import collections
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from big_align.core.errors import UserError, check_at_least
from big_align.models.dual_encoder import normalize
from big_align.parallel.meshes import BATCH_AXES, batch_sharding, replicated
from big_align.parallel.shards import map_rows

CHUNK = 4096
"""Rows of a chunk by default."""

BLOCK_CPU, BLOCK = 256, 8192
"""Centers of a block: on CPUs the logits of a chunk stay in a cache, elsewhere launches are few."""


class CenterLayout:
    """How k centers are laid out on the devices: equal parts in order, of whole blocks, zeros last.

    At most `block` centers are compared with at a time on each device; None suits it.
    """

    def __init__(self, k: int, mesh: Mesh, block: int | None = None):
        if block is None:
            block = BLOCK_CPU if mesh.devices.flat[0].platform == "cpu" else BLOCK
        check_at_least(1, k=k, block=block)
        self.k, self.mesh = k, mesh
        part = -(-k // mesh.size)
        blocks = -(-part // block)
        self.block = -(-part // blocks)
        self.part = self.block * blocks

    @property
    def rows(self) -> int:
        """Rows including the padding."""
        return self.part * self.mesh.size

    def place(self, centers: Float[np.ndarray, "k d"]) -> Float[Array, "rows d"]:
        """Splits centers over the devices; each process fills in what its devices hold."""
        placement = batch_sharding(self.mesh)

        def rows(index: tuple) -> np.ndarray:
            first, end, _ = index[0].indices(self.rows)
            found = np.float32(centers[first : min(end, self.k)])
            return np.pad(found, ((0, end - first - len(found)), (0, 0)))

        return jax.make_array_from_callback((self.rows, centers.shape[1]), placement, rows)

    def collect(self, centers: Float[Array, "rows d"]) -> Float[np.ndarray, "k d"]:
        """Returns the centers on the host, on every process."""
        whole = jax.jit(lambda x: x, out_shardings=replicated(self.mesh))(centers)
        return np.asarray(whole)[: self.k]

    def first(self) -> Int[Array, ""]:
        """The number of the first center of this device, inside `map_rows`."""
        return jax.lax.axis_index(BATCH_AXES).astype(jnp.int32) * self.part


def nearest_of_all(
    x: Float[Array, "c d"],
    centers: Float[Array, "part d"],
    layout: CenterLayout,
    count: int,
    candidates: int | None,
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest centers of unit-length rows that every device has, inside `map_rows`.

    None as `candidates` compares in float32; a number compares in bfloat16, and so many of the
    nearest again in float32. Returns cosines in float32, largest first, and the numbers of the
    centers, on every device. Ties go to the first center.
    """
    if candidates is not None:
        kept = min(max(count, candidates), layout.k)
        _, labels = _compare_all(x, centers, layout, kept, jnp.bfloat16)
        return _compare_again(x, centers, layout.first(), labels, count)
    return _compare_all(x, centers, layout, count, jnp.float32)


def _compare_all(
    x: Float[Array, "c d"],
    centers: Float[Array, "part d"],
    layout: CenterLayout,
    count: int,
    dtype: Any,
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest centers by products of a type, summed in float32."""
    first, x = layout.first(), x.astype(dtype)
    precision = "highest" if dtype == jnp.float32 else "default"
    found = min(count, layout.block)

    def compare(number: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        start = number * layout.block
        block = jax.lax.dynamic_slice_in_dim(centers, start, layout.block)
        label = first + start + jnp.arange(layout.block, dtype=jnp.int32)
        logits = jnp.matmul(
            x, block.T.astype(dtype), precision=precision, preferred_element_type=jnp.float32
        )
        logits = jnp.where(label < layout.k, logits, -jnp.inf)
        if count == 1:
            # XLA's argmax is no faster than two plain reductions on GPUs, and half as fast on CPUs.
            top = logits.max(axis=1, keepdims=True)
            at = jnp.where(logits == top, label, jnp.iinfo(jnp.int32).max).min(1, keepdims=True)
            nearer = top > best[0]
            return jnp.where(nearer, top, best[0]), jnp.where(nearer, at, best[1])
        top, at = jax.lax.top_k(logits, found)
        return _merge([best[0], top], [best[1], label[at]], count)

    start = jnp.full((len(x), count), -jnp.inf), jnp.full((len(x), count), -1, jnp.int32)
    best = jax.lax.fori_loop(0, layout.part // layout.block, compare, start)
    cosines, labels = (jax.lax.all_gather(y, BATCH_AXES) for y in best)
    return _merge(list(cosines), list(labels), count)


def _compare_again(
    x: Float[Array, "c d"],
    centers: Float[Array, "part d"],
    first: Int[Array, ""],
    labels: Int[Array, "c m"],
    count: int,
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest of candidates in float32, each on the device that has it."""
    labels = jnp.sort(labels, axis=1)  # ties go to the first center
    place = labels - first
    own = (place >= 0) & (place < len(centers))
    rows = centers[jnp.where(own, place, 0)]
    cosine = jnp.einsum("cd,cmd->cm", x, rows, precision="highest")
    cosine = jax.lax.psum(jnp.where(own, cosine, 0), BATCH_AXES)
    return _merge([cosine], [labels], count)


def _merge(
    cosines: list[Float[Array, "c _"]], labels: list[Int[Array, "c _"]], count: int
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Keeps the largest of several lists; of equal ones the first, which has the lower number."""
    top, at = jax.lax.top_k(jnp.concatenate(cosines, axis=1), count)
    return top, jnp.take_along_axis(jnp.concatenate(labels, axis=1), at, axis=1)


def collect_rows(x: Float[Array, "rows d"]) -> Float[Array, "c d"]:
    """Collects a chunk on every device at unit length, inside `map_rows`."""
    return normalize(jax.lax.all_gather(x, BATCH_AXES, tiled=True))


def own_rows(x: Array) -> Array:
    """Returns this device's rows of an array that every device has, in `map_rows`."""
    rows = len(x) // math.prod(jax.lax.axis_size(axis) for axis in BATCH_AXES)
    first = jax.lax.axis_index(BATCH_AXES) * rows
    return jax.lax.dynamic_slice_in_dim(x, first, rows)


def place_rows(rows: Any, first: int, chunk: int, mesh: Mesh) -> Float[Array, "chunk d"]:
    """Places rows [first, first + chunk) of the data; each process reads those of its devices.

    The chunk is a multiple of the number of devices; rows after the last one are zero.
    """

    def read(index: tuple[slice, ...]) -> np.ndarray:
        low, high, _ = index[0].indices(chunk)
        found = rows.read(*(min(first + place, rows.count) for place in (low, high)))
        missing = high - low - len(found)
        return np.concatenate([found, np.zeros((missing, rows.dim), found.dtype)])

    placement = batch_sharding(mesh)
    return jax.make_array_from_callback((chunk, rows.dim), placement, read)


def round_chunk(chunk: int, count: int, mesh: Mesh) -> int:
    """Returns the smaller of `chunk` and `count`, rounded up to divide evenly over the devices."""
    check_at_least(1, chunk=chunk)
    return -(-min(chunk, max(count, 1)) // mesh.size) * mesh.size


def one_ahead(begun: Iterator[Any]) -> Iterator[Any]:
    """Yields each item when the next one has begun: devices work while its rows are read."""
    held = collections.deque()
    for item in begun:
        held.append(item)
        if len(held) > 1:
            yield held.popleft()
    yield from held


class NearestCenters:
    """Finds the nearest of unit-length centers, split over the mesh, for rows read in chunks."""

    def __init__(
        self,
        centers: Float[np.ndarray, "k d"],
        mesh: Mesh,
        count: int,
        block: int | None = None,
        chunk: int = CHUNK,
        candidates: int | None = None,
    ):
        if not 1 <= count <= len(centers):
            raise UserError(f"{count} of {len(centers)} centers are asked for")
        layout = CenterLayout(len(centers), mesh, block)
        self._centers, self._mesh, self._chunk = layout.place(centers), mesh, chunk

        def on_device(_: tuple, rows: tuple[Array, Array]) -> tuple[Array, Array]:
            x = collect_rows(rows[1])
            found = nearest_of_all(x, rows[0], layout, count, candidates)
            return own_rows(found[0]), own_rows(found[1])

        self._find = jax.jit(
            lambda centers, x: map_rows(on_device, (), (centers, x), mesh),
            out_shardings=replicated(mesh),
        )

    def __call__(
        self, rows: Any
    ) -> Iterator[tuple[Float[np.ndarray, "n p"], Int[np.ndarray, "n p"]]]:
        """Yields, chunk by chunk on every process, cosines [n p] and numbers [n p] of centers."""
        chunk = round_chunk(self._chunk, rows.count, self._mesh)
        starts = range(0, rows.count, chunk)
        begun = (self._find(self._centers, place_rows(rows, i, chunk, self._mesh)) for i in starts)
        for first, found in zip(starts, one_ahead(begun), strict=True):
            yield tuple(np.asarray(x)[: rows.count - first] for x in found)
