"""Losses in tiles equal the plain formulas in value and in every gradient."""

import functools
import re
import subprocess
from importlib import util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses import blocks, tile_functions
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.cluster_discrimination import mlcd_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.sampled_cluster_discrimination import sampled_cluster_loss
from big_align.losses.sigmoid import blockwise_sigmoid_loss, sigmoid_loss
from big_align.parallel.kernels.pair_tiles import Sides, compare_plainly
from big_align.planning import gpu_topologies
from tests.losses.test_blockwise_contrastive import draw, make_mesh, make_pull
from tests.parallel.kernels.test_pair_tiles import assert_close, needs_mosaic

CASES = {
    "odd and masked pairs": {"b": 21, "c": 21, "masked": True, "smoothing": 0.1},
    "two texts an image": {"b": 150, "c": 300, "labels": 90},
    "some texts are queries": {"b": 13, "c": 290, "labels": 6, "queries": True, "masked": True},
}
ERRORS = {"float32": 1e-5, "bfloat16": 0.02}
"""The plain formula in float32 against tiles: bfloat16 rounds slopes and gradients."""


@pytest.fixture(autouse=True)
def small_stripes(monkeypatch):
    """Several stripes, of one tile each."""
    monkeypatch.setattr(blocks, "STRIPE_ROWS", 3)
    monkeypatch.setattr(blocks, "STRIPE_SLOPES", 1)


def widen(*arrays):
    return tuple(x.astype(jnp.float32) for x in arrays)


@pytest.mark.parametrize("shape", [pytest.param(None, marks=pytest.mark.slow), (4, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_softmax(case, dtype, shape):
    zimg, ztxt, targets = draw(**CASES[case])
    zimg, ztxt = zimg.astype(dtype), ztxt.astype(dtype)
    mesh = make_mesh(*shape) if shape else None
    tiles = functools.partial(blockwise_contrastive_loss, block="tiles", mesh=mesh)
    pull, plain = make_pull(tiles, targets), make_pull(contrastive_loss, targets)
    for scale in (8, 100):
        rest = jnp.float32(scale), (jnp.float32(1.3), jnp.float32(-0.4))
        made, grads = pull(zimg, ztxt, *rest)
        desired = plain(*widen(zimg, ztxt), *rest)
        assert [grad.dtype for grad in grads] == [dtype, dtype, "float32"]
        assert_close(made, desired[0], 1e-5)
        assert_close(grads, desired[1], ERRORS[dtype])


@pytest.mark.parametrize("shape", [pytest.param(None, marks=pytest.mark.slow), (4, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_sigmoid(case, dtype, shape):
    zimg, ztxt, targets = draw(**CASES[case])
    zimg, ztxt = zimg.astype(dtype), ztxt.astype(dtype)
    targets = {name: targets[name] for name in targets.keys() - {"text_queries", "label_smoothing"}}
    mesh = make_mesh(*shape) if shape else None
    run = functools.partial(blockwise_sigmoid_loss, block="tiles", mesh=mesh, **targets)
    tiles, plain = (
        jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))
        for loss in (run, functools.partial(sigmoid_loss, **targets))
    )
    forward = jax.jit(run)
    for scale, bias in ((8, -9), (100, -10)):
        rest = jnp.float32(scale), jnp.float32(bias)
        made, grads = tiles(zimg, ztxt, *rest)
        desired = plain(*widen(zimg, ztxt), *rest)
        assert_close(made, desired[0], 1e-5)
        assert_close(forward(zimg, ztxt, *rest), desired[0], 1e-5)
        assert_close(grads, desired[1], ERRORS[dtype])


@pytest.mark.parametrize("shape", [pytest.param(None, marks=pytest.mark.slow), (8, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_clusters(dtype, shape):
    """Positives that repeat, that are no candidates, and more of them than fit an integer."""
    rng = np.random.default_rng(0)
    zimg, _, _ = draw(29, 29)
    zimg = zimg.astype(dtype)
    rows = jnp.asarray(rng.standard_normal((304, 10)), jnp.float32)
    columns = rng.integers(-1, 300, (29, 40)).astype(np.int32)
    columns[:, 1], columns[3] = columns[:, 0], -1
    sampled, real = rng.random(304) < 0.3, np.arange(304) < 300
    tiles = functools.partial(
        sampled_cluster_loss,
        "mlcd",
        row_mask=jnp.asarray(real),
        columns=jnp.asarray(columns),
        sampled=jnp.asarray(sampled),
        mesh=make_mesh(*shape) if shape else None,
        block="tiles",
    )
    candidates = jnp.asarray(np.flatnonzero(sampled & real))
    plain = functools.partial(mlcd_loss, labels=jnp.asarray(columns), sampled=candidates)
    made, grads = jax.jit(jax.value_and_grad(lambda *x: tiles(*x)[0], (0, 1)))(zimg, rows)
    desired = jax.jit(jax.value_and_grad(plain, (0, 1)))(*widen(zimg), rows)
    # Directions of centers are rounded, too; of fewer channels, the errors of cosines are larger.
    assert_close(made, desired[0], 1e-5 if dtype == "float32" else 1e-3)
    assert_close(grads, desired[1], 1e-5 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("loss", [blockwise_contrastive_loss, blockwise_sigmoid_loss])
def test_without_real_pairs_there_is_no_loss_and_no_gradient(loss):
    zimg, ztxt, _ = draw(9, 9)
    run = functools.partial(loss, image_mask=jnp.zeros(9, bool), block="tiles")
    rest = (jnp.float32(9),) if loss is blockwise_contrastive_loss else (jnp.float32(9),) * 2

    def total(*arrays):
        return jnp.sum(jnp.stack(jax.tree.leaves(run(*arrays))))

    made = jax.value_and_grad(total, tuple(range(2 + len(rest))))(zimg, ztxt, *rest)
    assert not any(np.any(x) for x in jax.tree.leaves(made))


def test_a_nan_is_not_hidden():
    zimg = jnp.ones((4, 2)).at[1, 0].set(jnp.nan)
    run = functools.partial(blockwise_contrastive_loss, zimg, jnp.ones((4, 2)), jnp.float32(1))
    assert jnp.isnan(jnp.stack(run(block="tiles"))).all()


FUNCTIONS = {
    "normalize": (tile_functions._NORMALIZE, 1, "i", "i"),
    "differentiate": (tile_functions._DIFFERENTIATE, 1, "ifff", "iff"),
    "judge": (tile_functions._JUDGE, 2, "i", "i"),
    "add costs": (tile_functions._ADD_COSTS, 2, "i", "i"),
    "sum negatives": (tile_functions._SUM_NEGATIVES, 1, "m", "ii"),
    "pull": (tile_functions._PULL, 1, "ff", "i"),
}
"""A function, how many numbers it takes, and of what type its sides are: m are marks."""


def make_sides(name, rows, columns):
    """Draws the sides of a function."""
    function, numbers, row_types, column_types = FUNCTIONS[name]
    rng = np.random.default_rng(0)

    def make(letter, count):
        if letter == "f":
            return jnp.asarray(rng.random(count), jnp.float32)
        if letter == "m":
            marks = rng.integers(-(2**31), 2**31, (columns // function.width, count))
            return jnp.asarray(marks, jnp.int32)
        return jnp.asarray(rng.integers(-1, 60, count), jnp.int32)

    return Sides(
        tuple(jnp.float32(2 + index) for index in range(numbers)),
        tuple(make(letter, rows) for letter in row_types),
        tuple(make(letter, columns) for letter in column_types),
    )


@needs_mosaic
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_kernel_computes_what_is_stated(name):
    from jax.experimental.pallas import mosaic_gpu

    from big_align.parallel.kernels.hopper_tiles import compare

    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal((n, 64)) / 8, jnp.bfloat16) for n in (256, 128))
    arguments = FUNCTIONS[name][0], x, y, make_sides(name, 256, 128)
    made = compare(*arguments, interpret=mosaic_gpu.InterpretGPUParams(), processors=1)
    assert_close(made, compare_plainly(*arguments), 0.005)


@needs_mosaic
@pytest.mark.slow
@pytest.mark.skipif(not gpu_topologies.has_compiler(), reason="JAX for CUDA: pip install '.[cuda]'")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_registers_suffice(name, monkeypatch, tmp_path):
    """What does not fit into registers is spilled to memory, several times a tile."""
    from big_align.parallel.kernels.hopper_tiles import compare

    package = util.find_spec("nvidia.cu13")
    assembler = Path(list(package.submodule_search_locations)[0]) / "bin/ptxas" if package else None
    if assembler is None or not assembler.exists():
        pytest.skip("ptxas: pip install nvidia-cuda-nvcc")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTX", "1")
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    place = jax.sharding.SingleDeviceSharding(gpu_topologies.describe_gpus("h100", 1, 1)[0])

    def describe(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    size = 8192
    x = jax.ShapeDtypeStruct((size, 512), jnp.bfloat16, sharding=place)
    sides = jax.tree.map(describe, make_sides(name, size, size))
    jax.jit(functools.partial(compare, FUNCTIONS[name][0])).lower(x, x, sides).compile()
    (program,) = tmp_path.glob("*.ptx")
    command = [assembler, "-v", "-arch=sm_90a", program, "-o", tmp_path / "made"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert re.findall(r"(\d+) bytes spill", told) == ["0", "0"]
