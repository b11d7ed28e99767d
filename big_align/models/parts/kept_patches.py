"""Which patches of an image a tower sees in training: a part of them, drawn for each image.

FLIP (Li et al. 2023, arXiv 2212.00794, §3) trains CLIP on random halves and quarters of the
patches. What is left out is gathered away before the first layer, so that the cost falls with the
number of patches.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from big_align.core.errors import check_known

DRAWS, KEYS = "draws", "keys"
"""The collection and the name of the variable that has a key for each image.

Without it the keys are drawn with those of dropout.
"""

MOST_STRETCHED = 2.0
"""How much longer a block may be than the image it is of, in proportion to its other side."""


Keys = UInt32[Array, "b 2"] | Key[Array, " b"]
"""A key for each image."""


class KeptCount(NamedTuple):
    """How many patches are kept of a grid: `rows` x `columns` of them, if they have a form."""

    count: int
    rows: int
    columns: int


def count_kept(keep: float | int, grid: tuple[int, int], by: str) -> KeptCount:
    """Returns how many patches are kept, the same number of every image.

    Args:
      keep: a fraction of the patches, above 0 and at most 1, or a number of them, above 1.
      grid: rows and columns of patches.
      by: a key of `WAYS`. Of a block or a grid, the rectangle is taken whose number of patches is
        the nearest; a number must be that of a rectangle.

    Raises:
      ValueError: the number is not possible, or the way is unknown.
    """
    check_known("keep_by", by, WAYS)
    total = math.prod(grid)
    if not 0 < keep <= total or (keep > 1 and keep != int(keep)):
        raise ValueError(
            f"keep={keep:g} must be a fraction above 0, at most 1, or a whole number of the "
            f"{total} patches of {grid[0]} x {grid[1]}"
        )
    wanted = keep if keep > 1 else keep * total
    if by == "random":
        return KeptCount(max(1, round(wanted)), 1, max(1, round(wanted)))
    rows, columns = min(_list_rectangles(grid), key=lambda form: _distance(form, grid, wanted))
    if keep > 1 and rows * columns != keep:
        raise ValueError(
            f"keep={keep:g} patches are no rectangle in {grid[0]} x {grid[1]}; the nearest is "
            f"{rows} x {columns}: write keep={rows * columns}, or keep_by='random'"
        )
    return KeptCount(rows * columns, rows, columns)


def _list_rectangles(grid: tuple[int, int]) -> list[tuple[int, int]]:
    every = [(r, c) for r in range(1, grid[0] + 1) for c in range(1, grid[1] + 1)]
    fitting = [form for form in every if _stretch(form, grid) <= math.log(MOST_STRETCHED) + 1e-9]
    return fitting or every


def _stretch(form: tuple[int, int], grid: tuple[int, int]) -> float:
    return abs(math.log(form[0] * grid[1] / (form[1] * grid[0])))


def _distance(
    form: tuple[int, int], grid: tuple[int, int], wanted: float | int
) -> tuple[float | int, ...]:
    return abs(math.prod(form) - wanted), _stretch(form, grid), *form


def draw_kept(keys: Keys, grid: tuple[int, int], kept: KeptCount, by: str) -> Int[Array, "b k"]:
    """Draws the patches that are kept of each image, by its key: their numbers, ascending.

    Patches are numbered row by row.
    """
    drawn = jax.vmap(lambda key: WAYS[by](key, grid, kept))(keys)
    return jnp.sort(drawn, axis=1)


def _draw_random(key: Array, grid: tuple[int, int], kept: KeptCount) -> Int[Array, " k"]:
    """Draws patches anywhere, each set of them as likely as any other (FLIP)."""
    return jax.random.permutation(key, math.prod(grid))[: kept.count]


def _draw_block(key: Array, grid: tuple[int, int], kept: KeptCount) -> Int[Array, " k"]:
    """Draws a rectangle, anywhere that it has room."""
    room = jnp.array([grid[0] - kept.rows + 1, grid[1] - kept.columns + 1])
    top, left = jax.random.randint(key, (2,), 0, room)
    row, column = jnp.divmod(jnp.arange(kept.count), kept.columns)
    return (top + row) * grid[1] + left + column


def _draw_grid(key: Array, grid: tuple[int, int], kept: KeptCount) -> Int[Array, " k"]:
    """Draws one patch in each cell of a coarser grid.

    The cells, which need not be of one size, are shifted by a random number of patches around the
    edges, so that every patch is as likely as any other.
    """
    cell_key, shift_key = jax.random.split(key)
    row, column = jnp.divmod(jnp.arange(kept.count), kept.columns)
    first = _first_of(row, grid[0], kept.rows), _first_of(column, grid[1], kept.columns)
    end = _first_of(row + 1, grid[0], kept.rows), _first_of(column + 1, grid[1], kept.columns)
    size = jnp.stack([end[0] - first[0], end[1] - first[1]])
    inside = jax.random.randint(cell_key, size.shape, 0, size)
    shift = jax.random.randint(shift_key, (2,), 0, jnp.array(grid))
    y = (first[0] + inside[0] + shift[0]) % grid[0]
    x = (first[1] + inside[1] + shift[1]) % grid[1]
    return y * grid[1] + x


def _first_of(cell: Array, patches: int, cells: int) -> Array:
    return cell * patches // cells


WAYS: Mapping[str, Callable[[Array, tuple[int, int], KeptCount], Array]] = {
    "random": _draw_random,
    "block": _draw_block,
    "grid": _draw_grid,
}


def take_patches(x: Float[Array, "b l c"], kept: Int[Array, "b k"]) -> Float[Array, "b k c"]:
    """Gathers the patches that are kept of each image."""
    return jnp.take_along_axis(x, kept[:, :, None], axis=1)


@jax.custom_vjp
def take_positions(table: Float[Array, "l c"], kept: Int[Array, "b k"]) -> Float[Array, "b k c"]:
    """Looks up the positions of the patches that are kept of each image.

    Its gradient is a product, which no accelerator has to add up row by row.
    """
    return jnp.take(table, kept, axis=0)


def _take_forward(table: Array, kept: Array) -> tuple[Array, tuple[Array, int]]:
    return take_positions(table, kept), (kept, len(table))


def _take_backward(residuals: tuple[Array, int], cotangent: Array) -> tuple[Array, None]:
    kept, count = residuals
    places = jax.nn.one_hot(kept, count, dtype=cotangent.dtype)
    return jnp.einsum("bkl,bkc->lc", places, cotangent), None


take_positions.defvjp(_take_forward, _take_backward)
