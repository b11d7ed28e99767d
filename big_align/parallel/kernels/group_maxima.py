"""The largest products of rows with groups of columns, whose matrix is never written to memory.

Of a million columns so few are large that the rest need not leave the chip. Columns are in groups
of `GROUP`, and a row keeps the largest product with each group and the column that it is with. The
second largest of a group is lost; of two numbers that belong to the same few of a row, that is rare
where there are many more groups than these few. Which columns form a group differs by device.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from big_align.parallel.devices import traced
from big_align.parallel.devices.chips import find_chip
from big_align.parallel.kernels.pair_tiles import (
    COLUMNS,
    PAIR_ROWS,
    Results,
    Sides,
    TileFunction,
    compare_plainly,
    spread,
)
from big_align.parallel.kernels.stated_flops import state_bytes

GROUP = 512
"""Columns of a group."""
LANES, TALL, WIDE = 128, 1024, 1024
"""A TPU's lanes, and the rows and columns that one program of its kernel multiplies."""
UNIT = LANES * GROUP
"""The columns of a block, at most: each of a TPU's lanes has a group of it."""
VECTOR_MEMORY = 48 * 2**20
TILED_CHIPS = ("h100", "h200")

Maxima = tuple[Float[Array, "g m"], Int[Array, "g m"]]
FindMaxima = Callable[[Array, Array, Array], Maxima]
"""From rows [m d], columns [n d] and what is added to products with a column [n], -inf for none."""


def choose_maxima(device: Any) -> FindMaxima | None:
    """Returns what finds the maxima of groups on a device; None where XLA's products are as good.

    Rows and columns are of bfloat16. Columns are blocks of equal size, as few as `UNIT` allows and
    a multiple of `WIDE` each; channels are a multiple of 128.
    """
    if device.platform == "tpu":
        return find_maxima_on_tpu
    chip = find_chip(device.device_kind)
    if chip is None or chip.name not in TILED_CHIPS or jax.__version_info__ < (0, 11):
        return None
    from big_align.parallel.kernels import hopper_tiles  # Only here: it takes seconds.

    return functools.partial(find_maxima_in_tiles, compare=hopper_tiles.compare)


def find_maxima_plainly(
    x: Float[Array, "m d"], y: Float[Array, "n d"], added: Float[Array, " n"]
) -> Maxima:
    """States what is found: the largest products with groups, and their columns.

    Of equal products, the first column counts.
    """
    products = jnp.einsum("md,nd->mn", x, y, preferred_element_type=jnp.float32) + added
    groups = products.reshape(len(x), -1, GROUP)
    first = jnp.arange(groups.shape[1], dtype=jnp.int32) * GROUP
    return groups.max(axis=2).T, (groups.argmax(axis=2).astype(jnp.int32) + first).T


def _find_largest(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    added, place = columns
    products = products + added
    peak = products.max(axis=1)
    first = jnp.where(products == spread(peak, 0, products), -place, -jnp.inf).max(axis=1)
    return Results((peak, first))


_FIND_LARGEST = TileFunction(_find_largest, rows=2)


def find_maxima_in_tiles(
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    added: Float[Array, " n"],
    compare: Callable[..., Results] = compare_plainly,
) -> Maxima:
    """Does what `find_maxima_plainly` does, by the tiles of NVIDIA's Hopper."""
    count, tiles = len(x), len(y) // COLUMNS
    x = jnp.pad(x, ((0, -count % PAIR_ROWS), (0, 0)))
    place = (jnp.arange(len(y)) % COLUMNS).astype(jnp.float32)
    peak, place = compare(_FIND_LARGEST, x, y, Sides((), (), (added, place))).rows
    # The tiles of a group are next to each other.
    joined = (tiles * COLUMNS // GROUP, GROUP // COLUMNS, len(x))
    peak, place = (each.reshape(joined) for each in (peak, place))
    tile = peak.argmax(axis=1, keepdims=True)
    found, place = (jnp.take_along_axis(each, tile, axis=1)[:, 0] for each in (peak, -place))
    first = jnp.arange(joined[0], dtype=jnp.int32)[:, None] * GROUP + tile[:, 0] * COLUMNS
    return found[:, :count], (first + place.astype(jnp.int32))[:, :count]


def find_maxima_on_tpu(
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    added: Float[Array, " n"],
    interpret: bool = False,
) -> Maxima:
    """Does what `find_maxima_plainly` does on a TPU, with every 128th column of a block in a group.

    A lane keeps its own maximum, so nothing moves between lanes.
    """
    count, dim = x.shape
    tall = min(TALL, -(-count // 16) * 16)
    x = jnp.pad(x, ((0, -count % tall), (0, 0)))
    parts = -(-len(y) // UNIT)
    steps = len(y) // (parts * WIDE)
    grid = len(x) // tall, parts, steps
    moved = 2 * dim * (grid[0] * len(y) + len(x)) + 8 * parts * len(x) * LANES
    made = [jax.ShapeDtypeStruct((parts, len(x), LANES), t) for t in (jnp.float32, jnp.int32)]
    kept = pl.BlockSpec((None, tall, LANES), lambda row, part, step: (part, row, 0))
    kernel = pl.pallas_call(
        _keep_largest,
        grid=grid,
        in_specs=[
            pl.BlockSpec((tall, dim), lambda row, part, step: (row, 0)),
            pl.BlockSpec((WIDE, dim), lambda row, part, step: (part * steps + step, 0)),
            pl.BlockSpec((1, WIDE), lambda row, part, step: (0, part * steps + step)),
        ],
        out_specs=[kept, kept],
        out_shape=made,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=VECTOR_MEMORY,
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * len(x) * len(y) * dim,
            transcendentals=0,
            bytes_accessed=moved,
        ),
        interpret=interpret,
        name="group_maxima",
    )
    with traced.describing(), state_bytes(moved):
        peak, step = kernel(x, y, added[None])
    lane = jnp.arange(LANES, dtype=jnp.int32)
    place = step * LANES + lane + jnp.arange(parts, dtype=jnp.int32)[:, None, None] * (steps * WIDE)
    return tuple(each.transpose(0, 2, 1).reshape(-1, len(x))[:, :count] for each in (peak, place))


def _keep_largest(x: Any, y: Any, added: Any, peak: Any, place: Any) -> None:
    """Takes some columns into account, in the order of their numbers."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _() -> None:
        peak[...] = jnp.full(peak.shape, -jnp.inf, peak.dtype)
        place[...] = jnp.zeros(place.shape, place.dtype)

    channels = (((1,), (1,)), ((), ()))
    products = (
        jax.lax.dot_general(x[...], y[...], channels, preferred_element_type=jnp.float32)
        + added[...]
    )
    best, at = peak[...], place[...]
    for part in range(products.shape[1] // LANES):
        piece = products[:, part * LANES : (part + 1) * LANES]
        larger = piece > best
        best = jnp.where(larger, piece, best)
        at = jnp.where(larger, step * (products.shape[1] // LANES) + part, at)
    peak[...], place[...] = best, at
