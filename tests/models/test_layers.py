"""Stochastic depth, attention, perceptrons."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.models.parts import attention, layers, narrow
from big_align.parallel.devices import traced
from big_align.parallel.meshes import batch_sharding, make_mesh


def assert_close(a, b, **tolerance):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} | tolerance
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, **tolerance), a, b)


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
