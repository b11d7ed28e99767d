"""Tiles of x y^T that need not be written: a function of each is computed where it is made.

This states what is computed. `hopper_tiles` does it on NVIDIA GPUs, tile by tile in registers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

ROWS, COLUMNS, CHANNELS = 128, 128, 64
"""A warpgroup's tile, and the channels that it multiplies at a time."""
PAIR_ROWS = 2 * ROWS
"""Rows of two tiles: those of x must be a multiple of it."""


class Results(NamedTuple):
    """What is computed of a tile of products [r c]."""

    rows: tuple[Array, ...] = ()  # vectors [r], each a sum or the like over the columns
    columns: tuple[Array, ...] = ()  # vectors [c]
    tile: Array | None = None  # what is stored of each pair [r c]

    @property
    def stored(self) -> Array:
        """The tile of a function that stores one."""
        assert self.tile is not None
        return self.tile


@dataclasses.dataclass(frozen=True)
class TileFunction:
    """A function of the tiles of a product, and what it returns.

    It takes products [r c] in float32, numbers, row sides [r c] and column sides [r c], and
    consists of elementwise operations, sums, maxima and `spread`. Fewer columns at a time need
    fewer registers: 32 to 128, or to 64 if it stores.
    """

    compute: Callable[..., Results]
    rows: int = 0  # number of its vectors by row
    columns: int = 0  # number of its vectors by column
    stores: bool = False  # whether it returns a tile
    width: int = COLUMNS  # columns of the products that it gets at a time


class Sides(NamedTuple):
    """What a function of tiles is given besides products.

    Vectors have an entry per row of x or y, of float32 or int32; those of x may be [n / width, m],
    one for each `width` columns.
    """

    numbers: tuple[Array | float, ...]  # float32 scalars
    rows: tuple[Array, ...]
    columns: tuple[Array, ...]


def spread(vector: Shaped[Array, " n"], axis: int, like: Array) -> Array:
    """Repeats a vector over a tile, so that it lies along the axis."""
    return jax.lax.broadcast_in_dim(vector, like.shape, (axis,))


def compare_plainly(
    function: TileFunction, x: Float[Array, "m d"], y: Float[Array, "n d"], sides: Sides
) -> Results:
    """Computes a function of all tiles of x y^T; rows are multiples of `PAIR_ROWS` and `COLUMNS`.

    By row there are vectors [n / width, m]; by column, vectors [m / `ROWS`, n]; stored tiles are
    one matrix [m n] of the type of x.
    """
    width = function.width
    row_blocks, column_blocks = len(x) // ROWS, len(y) // width
    row_sides = tuple(
        jnp.broadcast_to(side, (column_blocks, len(x))).reshape(column_blocks, row_blocks, ROWS)
        for side in sides.rows
    )
    column_sides = tuple(side.reshape(column_blocks, width) for side in sides.columns)

    def compute(x: Array, row_sides: tuple, y: Array, column_sides: tuple) -> Results:
        products = jnp.einsum("rd,cd->rc", x, y, preferred_element_type=jnp.float32)
        rows = tuple(spread(each, 0, products) for each in row_sides)
        columns = tuple(spread(each, 1, products) for each in column_sides)
        made = function.compute(products, sides.numbers, rows, columns)
        return made._replace(tile=made.tile.astype(x.dtype) if function.stores else None)

    by_column = jax.vmap(compute, in_axes=(None, 0, 0, 0))
    each = jax.lax.map(
        lambda row: by_column(*row, y.reshape(column_blocks, width, -1), column_sides),
        (x.reshape(row_blocks, ROWS, -1), tuple(side.swapaxes(0, 1) for side in row_sides)),
    )
    tile = each.tile
    if tile is not None:
        tile = tile.transpose(0, 2, 1, 3).reshape(len(x), len(y))
    return Results(
        tuple(vector.swapaxes(0, 1).reshape(column_blocks, -1) for vector in each.rows),
        tuple(vector.reshape(row_blocks, -1) for vector in each.columns),
        tile,
    )


def sort_results(function: TileFunction, arrays: Sequence) -> Results:
    """Sorts what is computed by row, by column and by pair, in this order."""
    row_count, end = function.rows, function.rows + function.columns
    tile = arrays[end] if function.stores else None
    return Results(tuple(arrays[:row_count]), tuple(arrays[row_count:end]), tile)
