"""A function of tiles is what it is of the whole matrix, and the kernel computes what is stated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.parallel.kernels.pair_tiles import (
    COLUMNS,
    PAIR_ROWS,
    ROWS,
    Results,
    Sides,
    TileFunction,
    compare_plainly,
    spread,
)

needs_mosaic = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="the kernel needs jax 0.11: pip install 'jax>=0.11'"
)


def describe(products, numbers, rows, columns):
    """Has a part of each kind: by row, by column and by pair, with each kind of side."""
    (factor, added), (row, by_piece), (column,) = numbers, rows, columns
    logits = factor * products + added + row - column
    peak = logits.max(axis=0)
    total = jnp.exp2(logits - spread(peak, 1, logits)).sum(axis=0)
    return Results(
        (logits.sum(axis=1), logits.max(axis=1)),
        (peak + jnp.log2(total),),
        jnp.where(by_piece > 3, logits, 0.0),
    )


def draw(rows, columns, width, channels=64):
    rng = np.random.default_rng(0)
    x, y = (
        jnp.asarray(rng.standard_normal((count, channels)) / channels**0.5, jnp.bfloat16)
        for count in (rows, columns)
    )
    sides = Sides(
        (jnp.float32(3), jnp.float32(-0.5)),
        (
            jnp.asarray(rng.standard_normal(rows), jnp.float32),
            jnp.asarray(rng.integers(0, 8, (columns // width, rows)), jnp.int32),
        ),
        (jnp.asarray(rng.standard_normal(columns), jnp.float32),),
    )
    return x, y, sides


def assert_close(actual, desired, tolerance):
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        a, d = np.float32(a), np.float32(d)
        assert a.shape == d.shape
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max())


@pytest.mark.slow_repeats
@pytest.mark.parametrize("width", [32, 64])
def test_tiles_together_are_the_matrix(width):
    rows, columns = 2 * PAIR_ROWS, 3 * COLUMNS
    x, y, sides = draw(rows, columns, width)
    made = compare_plainly(TileFunction(describe, 2, 1, True, width), x, y, sides)
    (row, by_piece), (column,) = sides.rows, sides.columns
    logits = 3 * x.astype(np.float32) @ y.astype(np.float32).T - 0.5 + row[:, None] - column
    pieces = logits.reshape(rows, columns // width, width)
    tall = logits.reshape(rows // ROWS, ROWS, columns)
    desired = Results(
        (pieces.sum(axis=2).T, pieces.max(axis=2).T),
        (jax.nn.logsumexp(tall * jnp.log(2), axis=1) / jnp.log(2),),
        jnp.where(jnp.repeat(by_piece.T, width, axis=1) > 3, logits, 0).astype(jnp.bfloat16),
    )
    assert_close(made, desired, 0.005)
    assert_close(made.columns, desired.columns, 1e-5)


@needs_mosaic
@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, width, channels, processors",
    [
        pytest.param((256, 128), 64, 64, 3, id="fewer tiles than processors"),
        pytest.param((512, 384), 32, 192, 2, id="fewer slices than places in the ring"),
        pytest.param((256, 384), 64, 448, 1, id="more slices than places in the ring"),
    ],
)
def test_the_kernel_computes_what_is_stated(shape, width, channels, processors):
    from jax.experimental.pallas import mosaic_gpu

    from big_align.parallel.kernels.hopper_tiles import compare

    x, y, sides = draw(*shape, width, channels)
    function = TileFunction(describe, 2, 1, True, width)
    made = compare(
        function,
        x,
        y,
        sides,
        interpret=mosaic_gpu.InterpretGPUParams(),
        processors=processors,
    )
    assert_close(made, compare_plainly(function, x, y, sides), 0.005)
