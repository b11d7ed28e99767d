"""Tiles of x y^T on NVIDIA's Hopper, such as the H100: computed in registers, not written.

A block of threads takes two tiles at a time, one for each of two warpgroups. A third loads slices
of x and y into a ring in shared memory. While one warpgroup multiplies, the other computes the
function of its tile, so that tensor cores and exponentials overlap; `turn` makes them alternate.
Blocks go through the tiles until there are none, next to each other, so that most slices come from
the second-level cache.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import mosaic_gpu
from jaxtyping import Array, Float

from big_align.parallel.kernels.pair_tiles import (
    CHANNELS,
    COLUMNS,
    PAIR_ROWS,
    ROWS,
    Results,
    Sides,
    TileFunction,
    sort_results,
)
from big_align.parallel.kernels.stated_flops import state_flops

_SLOTS, _NEIGHBORS, _PROCESSORS = 5, 8, 132


def compare(
    function: TileFunction,
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    sides: Sides,
    *,
    interpret: Any = None,
    processors: int = _PROCESSORS,
) -> Results:
    """Does what `compare_plainly` does, on an NVIDIA GPU of compute capability 9.

    Rows are of bfloat16, and their channels a multiple of `CHANNELS`. There is a block of threads
    for each of the multiprocessors.
    """
    counts = len(sides.rows), len(sides.columns)
    vector = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    types = [vector((len(y) // function.width, len(x)))] * function.rows
    types += [vector((len(x) // ROWS, len(y)))] * function.columns
    if function.stores:
        types.append(jax.ShapeDtypeStruct((len(x), len(y)), x.dtype))
    kernel = mosaic_gpu.kernel(
        functools.partial(_Block.run, function, counts),
        out_type=tuple(types),
        grid=(processors,),
        grid_names=("block",),
        num_threads=3,
        thread_name="warpgroup",
        kernel_name="pair_tiles",
        interpret=interpret,
        compiler_params=mosaic_gpu.CompilerParams(
            approx_math=True,
            lowering_semantics=mosaic_gpu.LoweringSemantics.Warpgroup,
        ),
    )
    numbers = jnp.stack([jnp.asarray(each, jnp.float32) for each in (*sides.numbers, 0)])
    with state_flops(2 * len(x) * len(y) * x.shape[1]):
        made = kernel(x, y, numbers, *sides.rows, *sides.columns)
    return sort_results(function, made)


class _Memory(NamedTuple):
    """Shared memory of a block, and what its warpgroups wait for."""

    x: Any  # the ring's slices [slots rows channels]
    y: Any  # likewise
    stored: Any  # for each multiplying warpgroup, the part of a tile that is on its way out
    full: Any  # by warpgroup and slot: a slot was filled for this warpgroup
    empty: Any  # by warpgroup and slot: this warpgroup has read the slot
    turn: Any  # both multiplying warpgroups have ended what they do at the same time


@dataclasses.dataclass(frozen=True)
class _Block:
    """What the threads of a block do."""

    function: TileFunction
    x: Any  # rows, in the memory of the GPU
    y: Any  # columns
    sides: Sides
    results: Results
    memory: _Memory
    warpgroup: Any  # the number of this one; 2 loads

    @classmethod
    def run(cls, function: TileFunction, counts: tuple[int, int], *refs: Any) -> None:
        """Reserves the memory of a block, and runs its warpgroups."""
        x, y, numbers, *rest = refs
        first, end = counts[0], sum(counts)
        sides = Sides(numbers, tuple(rest[:first]), tuple(rest[first:end]))
        results = sort_results(function, rest[end:])

        def shared(number: int, rows: int, columns: int) -> Any:
            swizzle = mosaic_gpu.SwizzleTransform(columns * x.dtype.itemsize)
            transforms = mosaic_gpu.TilingTransform((8, columns)), swizzle
            return mosaic_gpu.SMEM((number, rows, columns), x.dtype, transforms=transforms)

        def scoped(*memory: Any) -> None:
            warpgroup = jax.lax.axis_index("warpgroup")
            block = cls(function, x, y, sides, results, _Memory(*memory), warpgroup)
            pallas.when(warpgroup == 2)(block.load)
            pallas.when(warpgroup < 2)(block.multiply)

        pallas.run_scoped(
            scoped,
            shared(_SLOTS, ROWS, CHANNELS),
            shared(_SLOTS, COLUMNS, CHANNELS),
            shared(2, ROWS, function.width) if function.stores else None,
            mosaic_gpu.Barrier(num_arrivals=2, num_barriers=2 * _SLOTS),  # a copy of x and one of y
            mosaic_gpu.Barrier(num_barriers=2 * _SLOTS),
            mosaic_gpu.Barrier(num_arrivals=2),
            collective_axes="warpgroup",
        )

    @property
    def steps(self) -> int:
        """Slices of a tile."""
        return self.x.shape[1] // CHANNELS

    @property
    def shape(self) -> tuple[int, int]:
        """How many pairs of tiles there are along rows and columns."""
        return self.x.shape[0] // PAIR_ROWS, self.y.shape[0] // COLUMNS

    def visit(self, body: Callable[[Any, Any, Any], None]) -> None:
        """Calls a function with the number of each pair of tiles of this block, and its place."""

        @mosaic_gpu.nd_loop((math.prod(self.shape),), collective_axes="block")
        def _(info: Any) -> None:
            place = mosaic_gpu.planar_snake(info.index[0], self.shape, 1, _NEIGHBORS)
            body(info.local_index, *place)

    def load(self) -> None:
        """Fills the ring, for one warpgroup's tile and then for the other's."""
        mosaic_gpu.set_max_registers(40, action="decrease")

        def load_pair(number: Any, row: Any, column: Any) -> None:
            for warpgroup in range(2):
                first = (2 * number + warpgroup) * self.steps
                load = functools.partial(
                    self.load_slice, warpgroup, first, 2 * row + warpgroup, column
                )
                pallas.loop(0, self.steps)(load)

        self.visit(load_pair)
        # Nothing may still be read when the memory is given back.
        blocks, block = jax.lax.axis_size("block"), jax.lax.axis_index("block")
        pairs = jax.lax.div(math.prod(self.shape) + blocks - 1 - block, blocks)
        slices = 2 * self.steps * pairs
        pallas.loop(jnp.maximum(slices - _SLOTS, 0), slices)(self.await_reading)

    def load_slice(self, warpgroup: int, first: Any, row: Any, column: Any, step: Any) -> None:
        """Loads channels of a tile's rows and columns into the ring."""
        number = first + step
        pallas.when(number >= _SLOTS)(lambda: self.await_reading(number - _SLOTS))
        slot = jax.lax.rem(number, _SLOTS)
        full = self.memory.full.at[warpgroup * _SLOTS + slot]
        channels = pallas.ds(step * CHANNELS, CHANNELS)
        x = self.x.at[pallas.ds(row * ROWS, ROWS), channels]
        y = self.y.at[pallas.ds(column * COLUMNS, COLUMNS), channels]
        mosaic_gpu.copy_gmem_to_smem(x, self.memory.x.at[slot], full)
        mosaic_gpu.copy_gmem_to_smem(y, self.memory.y.at[slot], full)

    def await_reading(self, number: Any) -> None:
        """Waits until the slice with this number was read by its warpgroup."""
        reader = jax.lax.rem(jax.lax.div(number, self.steps), 2)
        mosaic_gpu.barrier_wait(self.memory.empty.at[reader * _SLOTS + jax.lax.rem(number, _SLOTS)])

    def multiply(self) -> None:
        """Computes the tiles of one warpgroup, while the other does the other half of the work."""
        mosaic_gpu.set_max_registers(232, action="increase")

        def take_turns() -> None:
            mosaic_gpu.barrier_arrive(self.memory.turn)
            mosaic_gpu.barrier_wait(self.memory.turn)

        def compute(number: Any, row: Any, column: Any) -> None:
            products = self.accumulate((2 * number + self.warpgroup) * self.steps)
            take_turns()
            self.finish(products, 2 * row + self.warpgroup, column)
            take_turns()

        pallas.when(self.warpgroup == 1)(take_turns)
        self.visit(compute)
        pallas.when(self.warpgroup == 0)(take_turns)
        if self.function.stores:
            mosaic_gpu.wait_smem_to_gmem(0)

    def accumulate(self, first: Any) -> Array:
        """Returns the products of a tile [rows columns], whose first slice has this number."""
        memory, own = self.memory, self.warpgroup * _SLOTS

        def release(step: Any) -> None:
            mosaic_gpu.barrier_arrive(memory.empty.at[own + jax.lax.rem(first + step, _SLOTS)])

        def add(step: Any, sums: Any) -> Any:
            slot = jax.lax.rem(first + step, _SLOTS)
            mosaic_gpu.barrier_wait(memory.full.at[own + slot])
            mosaic_gpu.wgmma(sums, memory.x.at[slot], memory.y.at[slot].transpose((1, 0)))
            mosaic_gpu.wgmma_wait(1)  # The one before is done.
            pallas.when(step > 0)(lambda: release(step - 1))
            return sums

        def scoped(sums: Any) -> Array:
            jax.lax.fori_loop(0, self.steps, add, sums)
            made = sums[...]
            release(self.steps - 1)
            return made

        return pallas.run_scoped(scoped, mosaic_gpu.ACC((ROWS, COLUMNS), jnp.float32))

    def finish(self, products: Array, row: Any, column: Any) -> None:
        """Computes the function of a tile, and writes what it returns."""
        width, sides = self.function.width, self.sides
        rows = pallas.ds(row * ROWS, ROWS)
        # The last number only keeps the vector from being empty.
        numbers = tuple(sides.numbers[index] for index in range(sides.numbers.shape[0] - 1))
        for index in range(COLUMNS // width):
            part = column * (COLUMNS // width) + index
            columns = pallas.ds(part * width, width)
            along_rows = tuple(
                self.read(side, (rows,) if len(side.shape) == 1 else (part, rows), 0)
                for side in sides.rows
            )
            along_columns = tuple(self.read(side, (columns,), 1) for side in sides.columns)
            piece = products[:, index * width : (index + 1) * width]
            made = self.function.compute(piece, numbers, along_rows, along_columns)
            for ref, vector in zip(self.results.rows, made.rows, strict=True):
                ref[part, rows] = vector
            for ref, vector in zip(self.results.columns, made.columns, strict=True):
                ref[row, columns] = vector
            if self.function.stores:
                self.store(made.tile, self.results.tile.at[rows, columns])

    def read(self, side: Any, part: tuple, axis: int) -> Array:
        """Reads a part of a side, and repeats it over a tile."""
        layout = mosaic_gpu.Layout.WGMMA.reduce(1 - axis)
        vector = mosaic_gpu.load(side, part, layout=layout, optimized=False)
        return jax.lax.broadcast_in_dim(vector, (ROWS, self.function.width), (axis,))

    def store(self, tile: Array, target: Any) -> None:
        """Writes a part of a tile by way of shared memory."""
        stored = self.memory.stored.at[self.warpgroup]
        mosaic_gpu.wait_smem_to_gmem(0, wait_read_only=True)
        stored[...] = tile.astype(stored.dtype)
        mosaic_gpu.commit_smem()
        mosaic_gpu.copy_smem_to_gmem(stored, target)
