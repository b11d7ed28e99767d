"""Tiles of x y^T that are never written to memory: a function of each is computed where it is made.

A block of threads on the GPU takes two tiles at a time, one for each of two warpgroups. A third
loads slices of x and y into a ring in shared memory. While one warpgroup multiplies, the other
computes the function of its tile, so that tensor cores and exponentials overlap; `turn` makes them
alternate. Blocks go through the tiles until there are none, next to each other, so that most
slices come from the second-level cache.

`compare_plainly` states what `compare` computes, in the same tiles.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jaxtyping import Array, Float

from big_align.kernels.stated_flops import state_flops

ROWS, COLUMNS, CHANNELS = 128, 128, 64
"""A warpgroup's tile, and the channels that it multiplies at a time."""
PAIR_ROWS = 2 * ROWS
"""Rows of two tiles: those of x must be a multiple of it."""
_SLOTS, _NEIGHBORS, _PROCESSORS = 5, 8, 132
_STORED = 64  # columns of a tile that is stored at a time: 128 bytes of bfloat16


class Results(NamedTuple):
    """What is computed of a tile of products [r c].

    Attributes:
      rows: vectors [r], each a sum or the like over the columns of the tile.
      columns: vectors [c].
      tile: what is stored of each pair [r c]; None for nothing.
    """

    rows: tuple[Array, ...] = ()
    columns: tuple[Array, ...] = ()
    tile: Array | None = None


@dataclasses.dataclass(frozen=True)
class TileFunction:
    """A function of the tiles of a product, and what it returns.

    Attributes:
      compute: from (products [r c] in float32, numbers, row sides [r c], column sides [r c]) to
        `Results`. It consists of elementwise operations, sums, maxima and `spread`.
      rows: number of its vectors by row.
      columns: number of its vectors by column.
      stores: whether it returns a tile.
      width: columns of the products that it gets at a time, 64 or 128: fewer need fewer registers.
    """

    compute: Callable[..., Results]
    rows: int = 0
    columns: int = 0
    stores: bool = False
    width: int = COLUMNS


class Sides(NamedTuple):
    """What a function of tiles is given besides products.

    Attributes:
      numbers: float32 scalars.
      rows: vectors with an entry per row of x, of float32 or int32.
      columns: vectors with an entry per row of y.
    """

    numbers: tuple[Array, ...]
    rows: tuple[Array, ...]
    columns: tuple[Array, ...]


def spread(vector: Float[Array, " n"], axis: int, like: Array) -> Array:
    """Repeats a vector over a tile, so that it lies along the axis."""
    return jax.lax.broadcast_in_dim(vector, like.shape, (axis,))


def compare_plainly(
    function: TileFunction, x: Float[Array, "m d"], y: Float[Array, "n d"], sides: Sides
) -> Results:
    """Computes a function of all tiles of x y^T.

    Args:
      function: what is computed.
      x: rows, a multiple of `PAIR_ROWS`.
      y: columns, a multiple of `COLUMNS`.
      sides: the function's other arguments.

    Returns:
      By row, vectors [n / width, m]; by column, vectors [m / `ROWS`, n]; stored tiles as one matrix
      [m n] of the type of x.
    """
    width = function.width
    row_blocks, column_blocks = len(x) // ROWS, len(y) // width
    cut = lambda size, vectors: tuple(each.reshape(-1, size) for each in vectors)  # noqa: E731

    def compute(x: Array, row_sides: tuple, y: Array, column_sides: tuple) -> Results:
        products = jnp.einsum("rd,cd->rc", x, y, preferred_element_type=jnp.float32)
        rows = tuple(spread(each, 0, products) for each in row_sides)
        columns = tuple(spread(each, 1, products) for each in column_sides)
        made = function.compute(products, sides.numbers, rows, columns)
        return made._replace(tile=made.tile.astype(x.dtype) if function.stores else None)

    by_column = jax.vmap(compute, in_axes=(None, None, 0, 0))
    each = jax.lax.map(
        lambda row: by_column(
            *row, y.reshape(column_blocks, width, -1), cut(width, sides.columns)
        ),
        (x.reshape(row_blocks, ROWS, -1), cut(ROWS, sides.rows)),
    )
    tile = each.tile
    if tile is not None:
        tile = tile.transpose(0, 2, 1, 3).reshape(len(x), len(y))
    return Results(
        tuple(vector.swapaxes(0, 1).reshape(column_blocks, -1) for vector in each.rows),
        tuple(vector.reshape(row_blocks, -1) for vector in each.columns),
        tile,
    )


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

    Args:
      function: what is computed.
      x: rows, a multiple of `PAIR_ROWS`, of bfloat16; channels are a multiple of `CHANNELS`.
      y: columns, a multiple of `COLUMNS`.
      sides: the function's other arguments.
      interpret: how to interpret the kernel where there is no such GPU.
      processors: blocks of threads, one for each multiprocessor.
    """
    from jax.experimental.pallas import mosaic_gpu

    vector = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    types = [vector((len(y) // function.width, len(x)))] * function.rows
    types += [vector((len(x) // ROWS, len(y)))] * function.columns
    if function.stores:
        types.append(jax.ShapeDtypeStruct((len(x), len(y)), x.dtype))
    kernel = mosaic_gpu.kernel(
        _Body(mosaic_gpu, function, len(x), len(y), x.shape[1], [len(each) for each in sides]).run,
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
    return _sort(function, made)


def _sort(function: TileFunction, arrays: Sequence) -> Results:
    """Sorts what a kernel returns, or where it writes it."""
    row_count, end = function.rows, function.rows + function.columns
    tile = arrays[end] if function.stores else None
    return Results(tuple(arrays[:row_count]), tuple(arrays[row_count:end]), tile)


class _Memory(NamedTuple):
    """Shared memory of a block, and what its warpgroups wait for.

    Attributes:
      x: the ring's slices of x [slots rows channels].
      y: its slices of y.
      stored: for each multiplying warpgroup, the part of a tile that is on its way out.
      full: by warpgroup and slot: a slot was filled for this warpgroup.
      empty: by warpgroup and slot: this warpgroup has read the slot.
      turn: both multiplying warpgroups have come to the end of what they do at the same time.
    """

    x: Any
    y: Any
    stored: Any
    full: Any
    empty: Any
    turn: Any


@dataclasses.dataclass(frozen=True)
class _Body:
    """What the threads of a block do.

    Attributes:
      gpu: the module `mosaic_gpu`.
      function: what is computed of a tile.
      m: rows of x.
      n: rows of y.
      d: channels.
      counts: how many numbers, row sides and column sides there are.
    """

    gpu: Any
    function: TileFunction
    m: int
    n: int
    d: int
    counts: list[int]

    @property
    def steps(self) -> int:
        """Slices of a tile."""
        return self.d // CHANNELS

    @property
    def shape(self) -> tuple[int, int]:
        """How many pairs of tiles there are along rows and columns."""
        return self.m // PAIR_ROWS, self.n // COLUMNS

    def run(self, x: Any, y: Any, numbers: Any, *rest: Any) -> None:
        """Reserves the memory of a block, and runs its warpgroups."""
        gpu, (_, rows, columns) = self.gpu, self.counts
        row_sides, column_sides = rest[:rows], rest[rows : rows + columns]
        outputs = _sort(self.function, rest[rows + columns :])
        transforms = gpu.TilingTransform((8, 64)), gpu.SwizzleTransform(128)
        memory = functools.partial(gpu.SMEM, dtype=x.dtype, transforms=transforms)

        def scoped(*allocated: Any) -> None:
            place, warpgroup = _Memory(*allocated), jax.lax.axis_index("warpgroup")
            pallas.when(warpgroup == 2)(lambda: self.load(x, y, place))
            pallas.when(warpgroup < 2)(
                lambda: self.multiply(warpgroup, numbers, row_sides, column_sides, outputs, place)
            )

        pallas.run_scoped(
            scoped,
            memory((_SLOTS, ROWS, CHANNELS)),
            memory((_SLOTS, COLUMNS, CHANNELS)),
            memory((2, ROWS, _STORED)) if self.function.stores else None,
            gpu.Barrier(num_arrivals=2, num_barriers=2 * _SLOTS),  # a copy of x and one of y
            gpu.Barrier(num_barriers=2 * _SLOTS),
            gpu.Barrier(num_arrivals=2),
            collective_axes="warpgroup",
        )

    def visit(self, body: Callable[[Any, Any, Any], None]) -> None:
        """Calls a function with the number of each pair of tiles of this block, and its place."""

        @self.gpu.nd_loop((math.prod(self.shape),), collective_axes="block")
        def _(info: Any) -> None:
            place = self.gpu.planar_snake(info.index[0], self.shape, 1, _NEIGHBORS)
            body(info.local_index, *place)

    def load(self, x: Any, y: Any, memory: _Memory) -> None:
        """Fills the ring, for one warpgroup's tile and then for the other's."""
        self.gpu.set_max_registers(40, action="decrease")

        def await_reading(place: Any) -> None:
            last, slot = jax.lax.rem(jax.lax.div(place, self.steps), 2), jax.lax.rem(place, _SLOTS)
            self.gpu.barrier_wait(memory.empty.at[last * _SLOTS + slot])

        def load_pair(number: Any, row: Any, column: Any) -> None:
            for warpgroup in range(2):
                rows = pallas.ds(row * PAIR_ROWS + warpgroup * ROWS, ROWS)
                columns = pallas.ds(column * COLUMNS, COLUMNS)

                @pallas.loop(0, self.steps)
                def _(step: Any) -> None:
                    place = (2 * number + warpgroup) * self.steps + step
                    slot = jax.lax.rem(place, _SLOTS)

                    pallas.when(place >= _SLOTS)(lambda: await_reading(place - _SLOTS))
                    channels = pallas.ds(step * CHANNELS, CHANNELS)
                    full = memory.full.at[warpgroup * _SLOTS + slot]
                    for source, part, target in ((x, rows, memory.x), (y, columns, memory.y)):
                        self.gpu.copy_gmem_to_smem(
                            source.at[part, channels], target.at[slot], full
                        )

        self.visit(load_pair)
        blocks, block = jax.lax.axis_size("block"), jax.lax.axis_index("block")
        pairs = jax.lax.div(math.prod(self.shape) + blocks - 1 - block, blocks)
        places = 2 * self.steps * pairs
        pallas.loop(jnp.maximum(places - _SLOTS, 0), places)(await_reading)

    def multiply(
        self,
        warpgroup: Any,
        numbers: Any,
        row_sides: Sequence,
        column_sides: Sequence,
        outputs: Results,
        memory: _Memory,
    ) -> None:
        """Computes the tiles of one warpgroup, while the other does the other half of the work."""
        gpu = self.gpu
        gpu.set_max_registers(232, action="increase")

        def take_turns() -> None:
            gpu.barrier_arrive(memory.turn)
            gpu.barrier_wait(memory.turn)

        def compute(number: Any, row: Any, column: Any) -> None:
            products = self.accumulate(warpgroup, number, memory)
            take_turns()
            row = 2 * row + warpgroup
            self.finish(warpgroup, products, row, column, numbers, row_sides, column_sides, outputs, memory)
            take_turns()

        pallas.when(warpgroup == 1)(take_turns)
        self.visit(compute)
        pallas.when(warpgroup == 0)(take_turns)
        if self.function.stores:
            gpu.wait_smem_to_gmem(0)

    def accumulate(self, warpgroup: Any, number: Any, memory: _Memory) -> Array:
        """Returns the products of a tile [rows columns]."""
        gpu = self.gpu

        def slot_of(step: Any) -> Any:
            return jax.lax.rem((2 * number + warpgroup) * self.steps + step, _SLOTS)

        def release(step: Any) -> None:
            gpu.barrier_arrive(memory.empty.at[warpgroup * _SLOTS + slot_of(step)])

        def add(step: Any, sums: Any) -> Any:
            slot = slot_of(step)
            gpu.barrier_wait(memory.full.at[warpgroup * _SLOTS + slot])
            gpu.wgmma(sums, memory.x.at[slot], memory.y.at[slot].transpose((1, 0)))
            gpu.wgmma_wait(1)  # The one before is done.
            pallas.when(step > 0)(lambda: release(step - 1))
            return sums

        def scoped(sums: Any) -> Array:
            jax.lax.fori_loop(0, self.steps, add, sums)
            made = sums[...]
            release(self.steps - 1)
            return made

        return pallas.run_scoped(scoped, gpu.ACC((ROWS, COLUMNS), jnp.float32))

    def finish(
        self,
        warpgroup: Any,
        products: Array,
        row: Any,
        column: Any,
        numbers: Any,
        row_sides: Sequence,
        column_sides: Sequence,
        outputs: Results,
        memory: _Memory,
    ) -> None:
        """Computes the function of a tile, and writes what it returns."""
        gpu, width = self.gpu, self.function.width
        rows = pallas.ds(row * ROWS, ROWS)
        scalars = tuple(numbers[index] for index in range(self.counts[0]))

        def side(ref: Any, part: Any, axis: int) -> Array:
            layout = gpu.Layout.WGMMA.reduce(1 - axis)
            vector = gpu.load(ref, (part,), layout=layout, optimized=False)
            return jax.lax.broadcast_in_dim(vector, (ROWS, width), (axis,))

        along_rows = tuple(side(ref, rows, 0) for ref in row_sides)
        for index in range(COLUMNS // width):
            part = column * (COLUMNS // width) + index
            columns = pallas.ds(part * width, width)
            along_columns = tuple(side(ref, columns, 1) for ref in column_sides)
            piece = products[:, index * width : (index + 1) * width]
            made = self.function.compute(piece, scalars, along_rows, along_columns)
            for ref, vector in zip(outputs.rows, made.rows, strict=True):
                ref[part, rows] = vector
            for ref, vector in zip(outputs.columns, made.columns, strict=True):
                ref[row, columns] = vector
            for start in range(0, width, _STORED) if self.function.stores else ():
                stored = memory.stored.at[warpgroup]
                gpu.wait_smem_to_gmem(0, wait_read_only=True)
                stored[...] = made.tile[:, start : start + _STORED].astype(stored.dtype)
                gpu.commit_smem()
                target = pallas.ds(part * width + start, _STORED)
                gpu.copy_smem_to_gmem(stored, outputs.tile.at[rows, target])
