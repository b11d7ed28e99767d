"""Layer normalization by kernels, emulated: the plain one in value and in every gradient.

What is emulated of batch normalization is in `tests/models/test_batch_norm.py`.
"""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.models.parts import narrow
from big_align.models.parts.batch_norm import BatchNorm
from big_align.models.vit import ViT
from big_align.parallel.devices import traced
from big_align.parallel.devices.compiler_flags import GPU_FLAGS
from big_align.parallel.kernels import triton_norm
from big_align.parallel.meshes import batch_sharding, make_mesh, replicated
from big_align.planning import gpu_topologies
from big_align.planning.hlo import parse_program
from big_align.planning.traffic import count_traffic
from tests.models.drawn_variables import draw_variables

H100 = types.SimpleNamespace(
    platform="gpu", device_kind="NVIDIA H100 80GB HBM3", compute_capability="9.0"
)
T4 = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA T4", compute_capability="7.5")
CPU = types.SimpleNamespace(platform="cpu", device_kind="cpu")


needs_compiler = pytest.mark.skipif(
    not gpu_topologies.has_compiler() or jax.__version_info__ < (0, 11),
    reason="JAX 0.11 for CUDA: pip install '.[cuda]'",
)


@pytest.fixture
def emulated(monkeypatch):
    """Calls a function with the kernels, which are emulated."""

    def run(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(triton_norm, "can_normalize", lambda channels, device: True)
            return function(*arguments)

    return run


def draw(shape, dtype="float32"):
    """Returns rows with large means, and gradients of both results."""
    draws = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(1), 3)]
    return [x.astype(dtype) for x in (2 * draws[0] + 5, *draws[1:])]


def both_passes(module, arrays, mesh=None):
    """Returns what a normalization returns, and the gradients of its weights and its input."""
    x, *cotangents = arrays
    weights = draw_variables(module, x[:1])
    mesh = mesh or make_mesh(devices=jax.devices()[:1])

    @jax.jit
    def run(weights, x, cotangents):
        with traced.weights_on(mesh):
            made, pull_back = jax.vjp(module.apply, weights, x)
            given = tuple(cotangents) if isinstance(made, tuple) else cotangents[0]
            return made, pull_back(given)

    return run(weights, x, cotangents)


def assert_equal(actual, desired, tolerance, scale=None):
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert a.dtype == d.dtype and a.shape == d.shape
        a, d = np.float32(a), np.float32(d)
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * (scale or np.abs(d).max()))


@pytest.mark.slow_repeats
@pytest.mark.parametrize("module", [narrow.LayerNorm, narrow.Fork])
@pytest.mark.parametrize(
    "shape",
    [
        *((3, 7, 96), (9, 70)),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ((2, 300, 64), (1, 1, 128), (2100, 80))),
    ],
)
def test_kernels_are_the_plain_normalization(emulated, module, shape):
    norm, arrays = module(1e-5, jnp.dtype("float32")), draw(shape)
    assert_equal(emulated(both_passes, norm, arrays), both_passes(norm, arrays), 2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_types_of_results_are_those_of_the_plain_one(emulated, dtype):
    norm, arrays = narrow.Fork(1e-5, jnp.dtype(dtype)), draw((4, 50, 96), "bfloat16")
    arrays[2] = arrays[2].astype(dtype)
    assert_equal(emulated(both_passes, norm, arrays), both_passes(norm, arrays), 1e-2)


def test_a_fork_adds_the_gradients_of_its_results(emulated):
    arrays = draw((5, 9, 96))
    x, passed, cotangent = arrays
    _, (weights, x_grad) = emulated(both_passes, narrow.Fork(1e-5, x.dtype), arrays)
    alone = both_passes(narrow.LayerNorm(1e-5, x.dtype), [x, cotangent])[1]
    assert_equal((weights, x_grad - passed), alone, 2e-6)


def test_eight_devices_are_like_one(emulated):
    norm, arrays = narrow.Fork(1e-5, jnp.dtype("float32")), draw((16, 11, 96))
    mesh = make_mesh(fsdp=2)
    split = jax.device_put(arrays, batch_sharding(mesh))
    eight = emulated(both_passes, norm, split, mesh)
    assert_equal(eight, both_passes(norm, arrays), 2e-6)
    assert eight[0][1].sharding.is_equivalent_to(batch_sharding(mesh), 3)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_a_tower_is_the_same_with_kernels(emulated, remat):
    tower = ViT("b/16", width=64, depth=2, heads=2, mlp_dim=96, remat=remat, input_norm=True)
    images = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    variables = draw_variables(tower, images)

    def run():
        def loss(variables):
            with traced.weights_on(make_mesh(devices=jax.devices()[:1])):
                return jnp.square(tower.apply(variables, images, train=True)[0]).sum()

        return jax.jit(jax.value_and_grad(loss))(variables)

    plain = run()
    # The gradients of the keys' biases are zero but for rounding.
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(plain[1]))
    assert_equal(emulated(run), plain, 1e-5, scale)


def test_kernels_are_for_gpus_that_have_them():
    new = jax.__version_info__ >= (0, 11)
    assert triton_norm.can_normalize(768, H100) == new
    assert not triton_norm.can_normalize(4096, H100)
    assert not triton_norm.can_normalize(768, T4)
    assert not triton_norm.can_normalize(768, CPU)


@needs_compiler
@pytest.mark.parametrize("gpus", [1, 8])
def test_gpus_read_and_write_rows_once_a_pass(gpus):
    mesh = make_mesh(devices=gpu_topologies.describe_gpus("h100", 1, gpus))
    rows = batch_sharding(mesh)
    x = jax.ShapeDtypeStruct((2048, 50, 768), jnp.bfloat16, sharding=rows)
    weight = jax.ShapeDtypeStruct((768,), jnp.float32, sharding=replicated(mesh))
    norm = narrow.Fork(1e-5, x.dtype)

    def run(scale, bias, x, passed, cotangent):
        with traced.weights_on(mesh):
            made, pull_back = jax.vjp(
                lambda scale, bias, x: norm.apply({"params": {"scale": scale, "bias": bias}}, x),
                scale,
                bias,
                x,
            )
            return made[1], pull_back((passed, cotangent))

    compiled = jax.jit(run).lower(weight, weight, x, x, x).compile(compiler_options=GPU_FLAGS)
    moved = count_traffic(parse_program(compiled.as_text()))
    array = 2048 // gpus * 50 * 768 * 2
    assert 6 * array <= moved <= 6.4 * array  # x twice, two gradients; the rows and their gradient


@needs_compiler
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize(("gated", "times"), [(False, 6), (True, 7)])
def test_gpus_read_activations_twice_in_the_backward_pass(gated, times, gpus):
    """And write their gradient; the forward pass, without its result, reads them once or twice."""
    mesh = make_mesh(devices=gpu_topologies.describe_gpus("h100", 1, gpus))
    rows, channels = batch_sharding(mesh), 624
    x = jax.ShapeDtypeStruct((128, 37, 37, channels), jnp.bfloat16, sharding=rows)
    shapes = (channels,), (channels,), (channels, 26), (26, channels)
    whole = [jax.ShapeDtypeStruct(s, jnp.float32, sharding=replicated(mesh)) for s in shapes]
    norm = BatchNorm(group_size=16, activation=nn.swish)

    def gate(pooled, down, up):
        return nn.sigmoid(nn.swish(pooled @ down) @ up)

    def run(x, scale, bias, down, up, cotangent):
        def apply(x, scale, bias, down, up):
            variables = {"params": {"scale": scale, "bias": bias}}
            zeros = jnp.zeros(channels)
            variables["batch_stats"] = {"mean": zeros, "var": zeros}
            gated_by = (gate, (down, up)) if gated else ()
            return norm.apply(variables, x, True, *gated_by, mutable=["batch_stats"])[0]

        with traced.weights_on(mesh):
            return jax.vjp(apply, x, scale, bias, down, up)[1](cotangent)

    compiled = jax.jit(run).lower(x, *whole, x).compile(compiler_options=GPU_FLAGS)
    moved = count_traffic(parse_program(compiled.as_text()))
    array = 128 // gpus * 37 * 37 * channels * 2
    assert times * array <= moved <= 1.05 * times * array
