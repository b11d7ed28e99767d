"""Batch normalization by groups, stochastic depth, attention."""

import functools
import math
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from big_align.models.parts import attention, layers, narrow
from big_align.parallel.devices import traced
from big_align.parallel.meshes import BATCH_AXES, batch_sharding, make_mesh

SHAPE = (16, 3, 2, 5)


def make_activations(dtype=jnp.float32):
    rows = jnp.arange(SHAPE[0], dtype=jnp.float32)[:, None, None, None]
    return (jax.random.normal(jax.random.key(0), SHAPE) * (1 + rows) + rows).astype(dtype)


def make_variables():
    keys = jax.random.split(jax.random.key(1), 4)
    draw = [1 + 0.1 * jax.random.normal(key, SHAPE[-1:]) for key in keys]
    return {
        "params": {"scale": draw[0], "bias": draw[1]},
        "batch_stats": {"mean": draw[2], "var": draw[3]},
    }


@functools.partial(jax.jit, static_argnames="group_size")
def normalize(x, group_size=None):
    """Returns the result, the new running statistics and gradients."""
    variables = make_variables()

    def loss(x, params):
        full, norm = variables | {"params": params}, layers.BatchNorm(group_size=group_size)
        y, new = norm.apply(full, x, True, mutable=["batch_stats"])
        return (jnp.sin(3 * y) * jnp.arange(y.size).reshape(y.shape)).mean(), (y, new)

    gradients, (y, new) = jax.grad(loss, (0, 1), has_aux=True)(x, variables["params"])
    return y, new["batch_stats"], gradients


def assert_close(a, b, **tolerance):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, **tolerance), a, b)


def test_one_group_of_everything_is_the_whole_batch():
    x = make_activations()
    assert_close(normalize(x, SHAPE[0]), normalize(x, None))


def test_whole_batch_equals_flax():
    x, variables = make_activations(), make_variables()
    for train in (True, False):
        flax = nn.BatchNorm(use_running_average=not train, momentum=0.99, epsilon=1e-3)
        expected = flax.apply(variables, x, mutable=["batch_stats"])
        ours = layers.BatchNorm().apply(variables, x, train, mutable=["batch_stats"])
        assert_close(ours[0], expected[0])
        assert_close(ours[1].get("batch_stats", {}), expected[1].get("batch_stats", {}))


def test_hand_computed_statistics():
    x = jnp.array([[1.0], [3.0], [10.0], [20.0]])
    norm = layers.BatchNorm(momentum=0.5, epsilon=0.0, group_size=2)
    variables = norm.init(jax.random.key(0), x, True)
    y, new = norm.apply(variables, x, True, mutable=["batch_stats"])
    np.testing.assert_allclose(y[:, 0], [-1, 1, -1, 1], rtol=1e-6)
    np.testing.assert_allclose(new["batch_stats"]["mean"], 0.5 * 0 + 0.5 * (2 + 15) / 2)
    np.testing.assert_allclose(new["batch_stats"]["var"], 0.5 * 1 + 0.5 * (1 + 25) / 2)


def test_fixed_statistics_are_those_of_evaluation_and_stay():
    """In training too, with gradients for scale and bias as of any affine map."""
    x = make_activations()
    variables = layers.BatchNorm().init(jax.random.key(0), x, True)
    wide = x.shape[-1]
    variables["batch_stats"] = {"mean": jnp.full(wide, 0.3), "var": jnp.full(wide, 4.0)}
    norm = layers.BatchNorm(fixed=True)
    y, new = norm.apply(variables, x, True, mutable=["batch_stats"])
    np.testing.assert_array_equal(y, layers.BatchNorm().apply(variables, x, False))
    for name, value in new["batch_stats"].items():
        np.testing.assert_array_equal(value, variables["batch_stats"][name])

    def total(params):
        return norm.apply(variables | {"params": params}, x, True).sum()

    gradient = jax.grad(total)(variables["params"])
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(gradient["bias"], x[..., 0].size, rtol=1e-6)
    np.testing.assert_allclose(gradient["scale"], ((x - 0.3) / np.sqrt(4.001)).sum(axes), rtol=1e-3)


def test_each_group_is_as_if_alone():
    x = make_activations()
    together, _, _ = normalize(x, 4)
    alone = [normalize(rows, None)[0] for rows in jnp.split(x, 4)]
    assert_close(together, jnp.concatenate(alone))


def test_order_within_a_group_changes_nothing_else():
    x, order = make_activations(), np.arange(SHAPE[0])
    order[4:8] = [6, 4, 7, 5]
    (y, stats, _), (moved, moved_stats, _) = normalize(x, 4), normalize(x[order], 4)
    assert_close(moved, y[order])
    assert_close(moved_stats, stats)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("group_size", [None, 2, 16])
def test_eight_devices_equal_one(group_size):
    x, mesh = make_activations(), make_mesh()
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec(BATCH_AXES)))
    assert_close(normalize(split, group_size), normalize(x, group_size))


def test_statistics_are_float32_for_bfloat16_activations():
    x = make_activations(jnp.bfloat16)
    y, stats, _ = normalize(x)
    exact, exact_stats, _ = normalize(x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16 and stats["mean"].dtype == jnp.float32
    assert_close(stats, exact_stats)
    assert_close(y.astype(jnp.float32), exact, rtol=1e-2, atol=1e-2)


def test_a_batch_that_does_not_divide_is_an_error():
    with pytest.raises(ValueError, match="16 examples .* group_size=3"):
        normalize(make_activations(), 3)


def test_drop_path_drops_whole_examples_and_keeps_the_mean():
    x = jax.random.normal(jax.random.key(2), (4000, 3, 2)) + 1
    drop = layers.DropPath(0.25)
    y = drop.apply({}, x, True, rngs={"dropout": jax.random.key(0)})
    kept = np.any(y != 0, (1, 2))
    np.testing.assert_allclose(y[kept], x[kept] / 0.75, rtol=1e-6)
    assert not np.any(y[~kept])
    assert abs(kept.mean() - 0.75) < 0.03  # four standard deviations
    np.testing.assert_array_equal(drop.apply({}, x, False), x)


def make_attention_inputs():
    keys = jax.random.split(jax.random.key(3), 3)
    return [jax.random.normal(key, (2, 6, 4, 8)) for key in keys]


def test_attention_equals_jax():
    inputs = make_attention_inputs()
    mask = jnp.arange(6) < jnp.array([[6], [4]])
    expected = jax.nn.dot_product_attention(*inputs, mask=mask[:, None, None, :])
    assert_close(attention.attend(*inputs, mask), expected)


def test_causal_attention_equals_jax_with_and_without_padding():
    inputs = make_attention_inputs()
    expected = jax.nn.dot_product_attention(*inputs, is_causal=True)
    assert_close(attention.attend(*inputs, None, causal=True), expected)
    mask = jnp.arange(6) < jnp.array([[6], [4]])
    both = jnp.tril(jnp.ones((6, 6), bool)) & mask[:, None, None, :]
    expected = jax.nn.dot_product_attention(*inputs, mask=both)
    assert_close(attention.attend(*inputs, mask, causal=True), expected)


def test_attention_mask_equals_slicing():
    query, key, value = make_attention_inputs()
    mask = jnp.broadcast_to(jnp.arange(6) < 4, (2, 6))
    expected = attention.attend(query, key[:, :4], value[:, :4], None)
    assert_close(attention.attend(query, key, value, mask), expected)


def test_attention_without_real_keys_is_zero_with_finite_gradients():
    inputs, mask = make_attention_inputs(), jnp.zeros((2, 6), bool)
    assert not np.any(attention.attend(*inputs, mask))
    gradients = jax.grad(lambda x: attention.attend(*x, mask).sum())(inputs)
    assert all(np.all(g == 0) for g in gradients)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width=10 is not a multiple of heads=4"):
        attention.SelfAttention(heads=4).init(jax.random.key(0), jnp.ones((1, 2, 10)), None, False)


def test_unknown_names_are_errors_that_list_the_known():
    with pytest.raises(
        ValueError, match="activation = 'relu6' is unknown .did you mean 'relu'.*; known: gelu"
    ):
        layers.MlpBlock(8, "relu6").init(jax.random.key(0), jnp.ones((1, 2, 4)))
    with pytest.raises(ValueError, match="dtype = 'int8' is unknown"):
        layers.compute_dtype("int8")


def test_gelu_is_its_formula_in_value_and_slope():
    x = np.concatenate([np.linspace(-12, 12, 4001), [0.0, -1e-30, 1e4, -1e4]])
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    cumulative = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in x])
    value, pull_back = jax.vjp(narrow.gelu, jnp.float32(x))
    slope = pull_back(jnp.ones_like(value))[0]
    np.testing.assert_allclose(value, x * cumulative, rtol=3e-7, atol=1e-6)
    np.testing.assert_allclose(slope, cumulative + x * density, rtol=3e-7, atol=1e-6)
    rounded = jnp.bfloat16(x)
    exact = narrow.gelu(jnp.float32(rounded)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(narrow.gelu(rounded), exact)  # rounded once, at the end


def test_rows_are_laid_out_where_they_are(monkeypatch):
    """No device gathers those of the others, as it would with jax 0.10."""
    mesh = make_mesh()
    gpu = types.SimpleNamespace(platform="gpu")
    monkeypatch.setattr(layers.traced, "traced_device", lambda: gpu)
    rows = jax.ShapeDtypeStruct((16, 4, 8), jnp.float32, sharding=batch_sharding(mesh))
    with traced.weights_on(mesh):
        compiled = jax.jit(lambda x: layers.lay_out_rows(x * 2) + 1).lower(rows).compile()
    assert "all-gather" not in compiled.as_text()
