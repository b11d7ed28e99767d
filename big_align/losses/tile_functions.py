"""What the losses over pairs compute of a tile of products, where logits are never written.

Each is a `TileFunction` beside the function that calls it for a block of rows and all columns.
Exponents are in units of log 2, as accelerators take them. `compare` is `hopper_tiles.compare` or
`pair_tiles.compare_plainly`. A negative label marks a row or column that is masked.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from big_align.losses.rows import normalize_rows, wide
from big_align.parallel.kernels.pair_tiles import Results, Sides, TileFunction, spread

Compare = Callable[[TileFunction, Array, Array, Sides], Results]
Sums = tuple[Float[Array, " _"], Float[Array, " _"]]
"""The maximum of some logits, and the sum of the exponentials of what they are less than it."""

_LOG2E = math.log2(math.e)
_LOWEST = -1e30  # a masked logit; finite, so that differences are never NaN


def _mask(logits: Array, row_label: Array, column_label: Array) -> Array:
    row, column = (jnp.where(label < 0, _LOWEST, 0.0) for label in (row_label, column_label))
    return logits + row + column


def _log_sum(logits: Float[Array, "r c"], axis: int) -> Array:
    """Returns the logarithm of the sum along an axis of a tile."""
    peak = logits.max(axis=axis)
    total = jnp.exp2(logits - spread(peak, 1 - axis, logits)).sum(axis=axis)
    return peak + jnp.log2(total)


def _join(parts: Float[Array, "t n"]) -> Sums:
    """Joins the logarithms of the sums of several tiles; masked logits add nothing."""
    peak = parts.max(axis=0)
    nothing = peak < _LOWEST / 2
    total = jnp.exp2(parts - peak).sum(axis=0)
    return jnp.where(nothing, _LOWEST, peak / _LOG2E), jnp.where(nothing, 0, total)


def add_sums(sums: Sums, added: Sums) -> Sums:
    """Returns the sums over both."""
    (old, total), (peak, more) = sums, added
    new = jnp.maximum(old, peak)
    return new, total * jnp.exp(old - new) + more * jnp.exp(peak - new)


def _normalize(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    (scale,), (row_label,), (column_label,) = numbers, rows, columns
    logits = _mask(scale * products, row_label, column_label)
    positive = jnp.where(row_label == column_label, logits, 0.0).sum(axis=1)
    return Results((_log_sum(logits, 1), positive), (_log_sum(logits, 0),))


_NORMALIZE = TileFunction(_normalize, rows=2, columns=1)


def normalize_pairs(
    compare: Compare,
    x: Float[Array, "b d"],
    y: Float[Array, "c d"],
    scale: Float[Array, ""],
    x_label: Int[Array, " b"],
    y_label: Int[Array, " c"],
) -> tuple[Sums, Float[Array, " b"], Sums]:
    """Returns the sums of rows, the sum of their positive logits, and the sums of columns."""
    made = compare(_NORMALIZE, x, y, Sides((scale * _LOG2E,), (x_label,), (y_label,)))
    row_parts, positive = made.rows
    return _join(row_parts), positive.sum(axis=0) / _LOG2E, _join(*made.columns)


def _differentiate(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    row_label, row_lse, row, positive = rows
    column_label, column_lse, column = columns
    logits = _mask(numbers[0] * products, row_label, column_label)
    slope = row * jnp.exp2(logits - row_lse) + column * jnp.exp2(logits - column_lse)
    return Results(tile=slope - jnp.where(row_label == column_label, positive, 0.0))


_DIFFERENTIATE = TileFunction(_differentiate, stores=True, width=64)


def differentiate_pairs(
    compare: Compare,
    x: Float[Array, "b d"],
    y: Float[Array, "c d"],
    scale: Float[Array, ""],
    rows: tuple[Array, Array, Array, Array],
    columns: tuple[Array, Array, Array],
) -> Float[Array, "b c"]:
    """Returns the gradient with respect to the logits, in the precision of the embeddings.

    `rows` are labels, logsumexp, factor of the softmax, and what is subtracted at positives;
    `columns` are labels, logsumexp, and factor of the softmax.
    """
    (x_label, row_lse, *row), (y_label, column_lse, column) = rows, columns
    row_sides = x_label, row_lse * _LOG2E, *row
    column_sides = y_label, column_lse * _LOG2E, column
    return compare(_DIFFERENTIATE, x, y, Sides((scale * _LOG2E,), row_sides, column_sides)).stored


def _judge(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    (scale, bias), (row_label,), (column_label,) = numbers, rows, columns
    logits = _mask(scale * products + bias, row_label, column_label)
    positive = row_label == column_label
    wrong = jnp.where(positive, -logits, logits)
    small = jnp.exp2(-_LOG2E * jnp.abs(wrong))
    # Of a small number, the sum with 1 would lose digits.
    series = small * (1 - small * (1 / 2 - small * (1 / 3 - small * (1 / 4))))
    rest = jnp.where(small < 1 / 16, series, jnp.log2(1 + small) * (1 / _LOG2E))
    slope = jnp.where(wrong < 0, small, 1.0) / (1 + small)
    slope = jnp.where(positive, -slope, slope)
    cost = jnp.maximum(wrong, 0.0) + rest
    return Results((cost.sum(axis=1), slope.sum(axis=1)), tile=slope)


def _add_costs(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    return Results(_judge(products, numbers, rows, columns).rows[:1])


_JUDGE = TileFunction(_judge, rows=2, stores=True, width=32)
_ADD_COSTS = TileFunction(_add_costs, rows=1)


def judge_pairs(
    compare: Compare,
    x: Float[Array, "b d"],
    y: Float[Array, "c d"],
    numbers: tuple[Float[Array, ""], Float[Array, ""]],  # scale and bias
    x_label: Int[Array, " b"],
    y_label: Int[Array, " c"],
) -> tuple[Float[Array, "b c"], Float[Array, ""], Float[Array, ""]]:
    """Returns the gradients with respect to the logits, and the sums of losses and gradients."""
    made = compare(_JUDGE, x, y, Sides(numbers, (x_label,), (y_label,)))
    cost, slope = made.rows
    return made.stored, cost.sum(), slope.sum()


def add_costs(
    compare: Compare, x: Array, y: Array, numbers: tuple, x_label: Array, y_label: Array
) -> Float[Array, ""]:
    """Returns the sum of the losses alone."""
    return compare(_ADD_COSTS, x, y, Sides(numbers, (x_label,), (y_label,))).rows[0].sum()


MARKED = 32
"""Columns whose marks are in one integer."""


def _sum_negatives(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    (scale,), (marks,), (candidate, bit) = numbers, rows, columns
    negative = (candidate != 0) & ((marks & bit) == 0)
    return Results((_log_sum(jnp.where(negative, scale * products, _LOWEST), 1),))


_SUM_NEGATIVES = TileFunction(_sum_negatives, rows=1, width=MARKED)


def sum_negatives(
    compare: Compare,
    z: Float[Array, "b d"],
    directions: Float[Array, "r d"],
    scale: float,
    candidate: Bool[Array, " r"],
    positives: Int[Array, "b p"],
) -> Sums:
    """Returns the sums of the examples over their negatives.

    They are the centers that are a `candidate`, except the example's `positives`, which list each
    once; an index beyond the last center stands for none.
    """
    count = len(directions)
    marks = jnp.zeros((count // MARKED, len(z)), jnp.int32)
    place = positives // MARKED, jnp.arange(len(z))[:, None]
    marks = marks.at[place].add(_bit(positives), mode="drop")
    columns = candidate.astype(jnp.int32), _bit(jnp.arange(count, dtype=jnp.int32))
    made = compare(_SUM_NEGATIVES, z, directions, Sides((scale * _LOG2E,), (marks,), columns))
    return _join(*made.rows)


def _bit(number: Int[Array, "..."]) -> Int[Array, "..."]:
    return jnp.left_shift(jnp.int32(1), (number % MARKED).astype(jnp.int32))


def find_cosines(
    zimg: Float[Array, "b d"], rows: Float[Array, "n d"], columns: Int[Array, "b p"]
) -> Float[Array, "b p"]:
    """Returns the cosines of positives, as in tiles; 0 for those beyond the rows."""

    def find(column: Int[Array, " b"]) -> Float[Array, " b"]:
        found = rows.at[column].get(mode="fill", fill_value=0)
        directions, _ = normalize_rows(found.astype(wide(rows.dtype)))
        products = directions.astype(zimg.dtype).astype(directions.dtype) * zimg
        return products.sum(axis=1)

    return jax.lax.map(find, columns.T).T


def _pull(products: Array, numbers: tuple, rows: tuple, columns: tuple) -> Results:
    (scale,), (log_sum, slope), (candidate,) = numbers, rows, columns
    logits = jnp.where(candidate != 0, scale * products, _LOWEST)
    return Results(tile=slope * jnp.exp2(logits - log_sum))


_PULL = TileFunction(_pull, stores=True, width=64)


def differentiate_negatives(
    compare: Compare,
    z: Float[Array, "b d"],
    directions: Float[Array, "r d"],
    scale: float,
    candidate: Bool[Array, " r"],
    log_sum: Float[Array, " b"],
    slope: Float[Array, " b"],
) -> Float[Array, "b r"]:
    """Returns the gradient with respect to the products, which is not that of positives there.

    `log_sum` is the logarithm of each example's sum over its negatives, `slope` the gradient with
    respect to it, and `candidate` says which centers are negatives where they are no positives.
    """
    # Without negatives it is the lowest number, and nothing is left of the difference to it.
    log_sum = jnp.where(log_sum < _LOWEST / 2, 0, log_sum * _LOG2E)
    rows, columns = (log_sum, scale * slope), (candidate.astype(jnp.int32),)
    return compare(_PULL, z, directions, Sides((scale * _LOG2E,), rows, columns)).stored
