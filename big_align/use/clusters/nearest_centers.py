"""The nearest of many centers by cosine: centers on every device, or split over a few, in blocks.

Rows are split over all devices, centers over the axis `fsdp` of the mesh, which is 1 where the
centers have room on each device: then nothing moves between devices until the end of a pass.
Otherwise the devices along that axis collect each other's rows, compare them with their own
centers, a block at a time, keeping the best so far, and merge what they found. Nothing of size rows
x centers exists beyond one block.

Products are in float32, so the nearest are found exactly; or, with `candidates`, in bfloat16, which
matrix units multiply many times as fast. Then so many of the nearest are compared again in float32,
and only a center that is not among them is missed. Where a device has a kernel for it, the
candidates are the largest of groups of centers (`group_maxima`), and no product is written.
"""

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from big_align.core.errors import UserError, check_at_least
from big_align.models.dual_encoder import normalize
from big_align.parallel.devices.chips import find_chip
from big_align.parallel.kernels import group_maxima
from big_align.parallel.meshes import (
    BATCH_AXES,
    batch_sharding,
    make_mesh,
    part_sharding,
    replicated,
)
from big_align.parallel.shards import map_parts

SPLIT = BATCH_AXES[1]
"""The axis of the mesh over which centers are split."""

CHUNK_CPU, CHUNK = 4096, 2**14
"""Rows of a chunk by default: of all CPUs, whose caches hold it, or of each accelerator."""

BLOCK_CPU, BLOCK = 256, 8192
"""Centers of a block: on CPUs the logits of a chunk stay in a cache, elsewhere launches are few."""

ROOM = 2**30
"""Bytes that centers may take of a device whose memory is not known."""


def make_center_mesh(k: int, dim: int, devices: Any = None) -> Mesh:
    """Makes a mesh that splits k centers over as few devices as have room for them."""
    devices = jax.devices() if devices is None else devices
    chip = find_chip(devices[0].device_kind)
    room = chip.usable_memory // 2 if chip else ROOM
    # Centers in float32 and bfloat16, their sums, and these of other devices at the end of a pass.
    needed = k * dim * (4 + 2 + 4 + 4)
    sizes = [size for size in range(1, len(devices) + 1) if len(devices) % size == 0]
    fitting = (size for size in sizes if needed <= size * room)
    return make_mesh(next(fitting, len(devices)), devices)


class Centers(NamedTuple):
    """Centers on the devices."""

    exact: Float[Array, "rows d"]
    rounded: Float[Array, "rows c"]  # to bfloat16, in whole lanes of a kernel; empty if not needed
    first: Int[Array, "n"]  # the number of the first center of each part


class CenterLayout:
    """How k centers are laid out on the devices: equal parts in order, of whole blocks, zeros last.

    At most `block` centers are compared with at a time on each device; None suits it. With
    `candidates`, they are compared in bfloat16 first, by `find_maxima`, if the device has it.
    """

    def __init__(
        self,
        k: int,
        mesh: Mesh,
        block: int | None = None,
        candidates: int | None = None,
        find_maxima: group_maxima.FindMaxima | None = None,
    ):
        device = mesh.devices.flat[0]
        self.k, self.mesh, self.candidates = k, mesh, candidates
        part, unit = -(-k // mesh.shape[SPLIT]), 1
        if find_maxima is None and candidates is not None and block is None:
            find_maxima = group_maxima.choose_maxima(device)
        self.find_maxima = find_maxima if part >= group_maxima.UNIT else None
        if self.find_maxima is not None:
            block, unit = group_maxima.UNIT, group_maxima.WIDE
        elif block is None:
            block = BLOCK_CPU if device.platform == "cpu" else BLOCK
        check_at_least(1, k=k, block=block)
        blocks = -(-part // block)
        self.block = -(-part // (blocks * unit)) * unit
        self.part = self.block * blocks

    @property
    def rows(self) -> int:
        """Rows including the padding."""
        return self.part * self.mesh.shape[SPLIT]

    @property
    def placement(self) -> NamedSharding:
        """The placement of centers: in parts, which are repeated along the other axes."""
        return part_sharding(self.mesh)

    def place(self, centers: Float[np.ndarray, "k d"]) -> Float[Array, "rows d"]:
        """Splits centers over the devices; each process fills in what its devices hold."""

        def rows(index: tuple) -> np.ndarray:
            first, end, _ = index[0].indices(self.rows)
            found = np.float32(centers[first : min(end, self.k)])
            return np.pad(found, ((0, end - first - len(found)), (0, 0)))

        shape = self.rows, centers.shape[1]
        return jax.make_array_from_callback(shape, self.placement, rows)

    def collect(self, centers: Float[Array, "rows d"]) -> Float[np.ndarray, "k d"]:
        """Returns the centers on the host, on every process."""
        whole = jax.jit(lambda x: x, out_shardings=replicated(self.mesh))(centers)
        return np.asarray(whole)[: self.k]

    def prepare(self, centers: Float[Array, "rows d"]) -> Centers:
        """Returns what rows are compared with."""
        return Centers(centers, *self.round(centers))

    @functools.cached_property
    def round(self) -> Any:
        """The compiled function from centers to the rest of what rows are compared with."""

        def find(centers: Float[Array, "rows d"]) -> tuple[Array, Array]:
            first = jnp.arange(self.mesh.shape[SPLIT], dtype=jnp.int32) * self.part
            if self.candidates is None:
                return jnp.zeros((len(first), 0)), first
            lanes = -centers.shape[1] % group_maxima.LANES if self.find_maxima else 0
            return jnp.pad(centers.astype(jnp.bfloat16), ((0, 0), (0, lanes))), first

        return jax.jit(find, out_shardings=self.placement)

    def run(self, function: Callable[..., Any], centers: Centers, x: Array, *split: Array) -> Any:
        """Runs a function of its centers and rows on every device, when compiled.

        The rows, and what is returned, are split over all devices, and so is what is in addition:
        its first axis over those that have the same centers, its second with the centers.
        """
        return map_parts(function, centers, x, split, self.mesh)


def nearest_of_all(
    x: Float[Array, "c d"], centers: Centers, layout: CenterLayout, count: int
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest centers of unit-length rows, inside `CenterLayout.run`.

    Each device has the rows of all with which it shares the centers. Returns cosines in float32,
    largest first, and the numbers of the centers, on each of these devices. Ties go to the first
    center.
    """
    if layout.candidates is None:
        best = _compare(x, centers.exact, centers.first[0], layout, count)
    else:
        kept = min(max(count, layout.candidates), layout.k)
        compare = _compare if layout.find_maxima is None else _compare_groups
        _, labels = compare(x, centers.rounded, centers.first[0], layout, kept)
        best = _compare_again(x, centers, labels, count)
    if layout.mesh.shape[SPLIT] == 1:
        return best
    cosines, labels = (jax.lax.all_gather(y, SPLIT) for y in best)
    return _merge(list(cosines), list(labels), count)


def _compare(
    x: Float[Array, "c d"],
    centers: Float[Array, "part d"],
    first: Int[Array, ""],
    layout: CenterLayout,
    count: int,
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest by products of the type of the centers, summed in float32."""
    x = x.astype(centers.dtype)
    precision = "highest" if x.dtype == jnp.float32 else "default"
    found = min(count, layout.block)

    def compare(number: Array, best: tuple[Array, Array]) -> tuple[Array, Array]:
        start = number * layout.block
        block = jax.lax.dynamic_slice_in_dim(centers, start, layout.block)
        label = first + start + jnp.arange(layout.block, dtype=jnp.int32)
        logits = jnp.matmul(x, block.T, precision=precision, preferred_element_type=jnp.float32)
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
    return jax.lax.fori_loop(0, layout.part // layout.block, compare, start)


def _compare_groups(
    x: Float[Array, "c d"],
    centers: Float[Array, "part w"],
    first: Int[Array, ""],
    layout: CenterLayout,
    count: int,
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest of the nearest of each group, by a kernel."""
    assert layout.find_maxima is not None
    x = jnp.pad(x.astype(centers.dtype), ((0, 0), (0, centers.shape[1] - x.shape[1])))
    numbers = first + jnp.arange(layout.part, dtype=jnp.int32)
    cosines, labels = layout.find_maxima(x, centers, jnp.where(numbers < layout.k, 0.0, -jnp.inf))
    best = []
    for _ in range(count):  # Sorting would take longer, and so do several passes over all groups.
        top = cosines.max(axis=0)
        at = jnp.where(cosines == top, labels, jnp.iinfo(jnp.int32).max).min(axis=0)
        cosines = jnp.where(labels == at, -jnp.inf, cosines)
        best.append((top, jnp.where(jnp.isfinite(top), first + at, -1)))
    top, at = (jnp.stack(each, axis=1) for each in zip(*best, strict=True))
    return top, at


def _compare_again(
    x: Float[Array, "c d"], centers: Centers, labels: Int[Array, "c m"], count: int
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Finds the nearest of candidates, which the device has, in float32; -1 is none."""
    labels = jnp.sort(labels, axis=1)  # ties go to the first center
    rows = centers.exact[jnp.maximum(labels - centers.first[0], 0)]
    cosine = jnp.einsum("cd,cmd->cm", x, rows, precision="highest")
    return _merge([jnp.where(labels < 0, -jnp.inf, cosine)], [labels], count)


def _merge(
    cosines: list[Float[Array, "c _"]], labels: list[Int[Array, "c _"]], count: int
) -> tuple[Float[Array, "c p"], Int[Array, "c p"]]:
    """Keeps the largest of several lists; of equal ones the first, which has the lower number."""
    top, at = jax.lax.top_k(jnp.concatenate(cosines, axis=1), count)
    return top, jnp.take_along_axis(jnp.concatenate(labels, axis=1), at, axis=1)


def collect_rows(x: Float[Array, "rows d"]) -> Float[Array, "c d"]:
    """Collects rows at unit length on the devices that share the centers, in `CenterLayout.run`."""
    return normalize(jax.lax.all_gather(x, SPLIT, tiled=True))


def own_rows(x: Array) -> Array:
    """Returns this device's rows of an array that those with which it shares centers have, too."""
    rows = len(x) // jax.lax.axis_size(SPLIT)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(SPLIT) * rows, rows)


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


def round_chunk(chunk: int | None, count: int, mesh: Mesh) -> int:
    """Returns the smaller of `chunk` and `count`, rounded up to divide evenly over the devices.

    None for the chunk is what suits the devices.
    """
    if chunk is None:
        chunk = CHUNK_CPU if mesh.devices.flat[0].platform == "cpu" else CHUNK * mesh.size
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
    """Finds the nearest of unit-length centers for rows read in chunks."""

    def __init__(
        self,
        centers: Float[np.ndarray, "k d"],
        mesh: Mesh,
        count: int,
        block: int | None = None,
        chunk: int | None = None,
        candidates: int | None = None,
    ):
        if not 1 <= count <= len(centers):
            raise UserError(f"{count} of {len(centers)} centers are asked for")
        layout = CenterLayout(len(centers), mesh, block, candidates)
        self._mesh, self._chunk = mesh, chunk
        self._centers = layout.prepare(layout.place(centers))
        self._find = compile_search(layout, count)

    def __call__(
        self, rows: Any
    ) -> Iterator[tuple[Float[np.ndarray, "n p"], Int[np.ndarray, "n p"]]]:
        """Yields, chunk by chunk on every process, cosines [n p] and numbers [n p] of centers."""
        chunk = round_chunk(self._chunk, rows.count, self._mesh)
        starts = range(0, rows.count, chunk)
        begun = (self._find(self._centers, place_rows(rows, i, chunk, self._mesh)) for i in starts)
        for first, found in zip(starts, one_ahead(begun), strict=True):
            yield tuple(np.asarray(x)[: rows.count - first] for x in found)


def compile_search(layout: CenterLayout, count: int) -> Any:
    """Returns the compiled function from centers and rows to the nearest of each, everywhere."""

    def on_device(centers: Centers, x: Array) -> tuple[tuple[Array, Array]]:
        found = nearest_of_all(collect_rows(x), centers, layout, count)
        return (tuple(map(own_rows, found)),)

    return jax.jit(
        lambda centers, x: layout.run(on_device, centers, x)[0],
        out_shardings=replicated(layout.mesh),
    )
