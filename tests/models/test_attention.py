"""When attention runs in cuDNN's kernel, and that it then equals the plain formula.

The rest is in test_layers.py. What runs in the kernel itself needs a GPU: JAX_PLATFORMS=cuda.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from big_align.models.parts import attention

needs_kernel = pytest.mark.skipif(
    not attention._has_kernel(), reason="needs an NVIDIA GPU of compute capability 8.0 or more"
)


def draw(length=6, width=8, dtype="bfloat16", batch=2, heads=4):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (batch, length, heads, width), dtype) for key in keys]


def differentiate(inputs, **options):
    """Value and gradients of a sum in which every output counts differently."""
    weights = jnp.cos(jnp.arange(inputs[0].size)).reshape(inputs[0].shape)

    def total(*inputs):
        return (weights * attention.attend(*inputs, None, **options).astype(jnp.float32)).sum()

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(*inputs)


@pytest.fixture
def counted(monkeypatch):
    """A machine with a kernel, and how often it was traced; this one computes the plain formula."""
    calls = []

    def attend(query, key, value, causal):
        calls.append(causal)
        return attention._attend_plainly(query, key, value, None, None, causal)

    monkeypatch.setattr(attention, "_has_kernel", lambda: True)
    monkeypatch.setattr(attention, "_attend_in_kernel", attend)
    return calls


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_in_bfloat16_is_for_the_kernel(counted, causal, monkeypatch):
    inputs = draw()
    chosen = differentiate(inputs, causal=causal)
    assert counted and set(counted) == {causal}
    monkeypatch.setattr(attention, "_has_kernel", lambda: False)
    jax.tree.map(np.testing.assert_array_equal, chosen, differentiate(inputs, causal=causal))


def test_what_the_kernel_cannot_do_is_done_plainly(counted):
    @jax.eval_shape
    def attend_all():
        query, key, value = draw()
        attention.attend(query, key, value, jnp.ones((2, 6), bool))
        attention.attend(query, key, value, None, drop=lambda weights: weights)
        attention.attend(query[:, :3], key, value, None)
        attention.attend(*draw(dtype="float32"), None)
        attention.attend(*draw(width=12), None)
        attention.attend(*draw(width=136), None)

    assert not counted


@pytest.mark.parametrize(("dropout", "train"), [(0.0, True), (0.5, False), (0.5, True)])
def test_only_dropout_that_happens_keeps_a_layer_from_the_kernel(counted, dropout, train):
    layer = attention.SelfAttention(heads=2, dropout=dropout, dtype="bfloat16")
    x = jnp.ones((2, 6, 16), jnp.bfloat16)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = nn.meta.unbox(layer.init(rngs, x, None, False))
    counted.clear()
    jax.eval_shape(lambda: layer.apply(variables, x, None, train, rngs=rngs))
    assert bool(counted) == (not train or dropout == 0)


@needs_kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 50, 257])
def test_the_kernel_equals_the_plain_formula(length, causal, monkeypatch):
    inputs = draw(length, 64)
    value, grads = differentiate(inputs, causal=causal)
    monkeypatch.setattr(attention, "_has_kernel", lambda: False)
    exact = [x.astype(jnp.float32) for x in inputs]
    with jax.default_matmul_precision("highest"):
        expected, slopes = differentiate(exact, causal=causal)
    size = sum(np.square(x).sum() for x in exact) ** 0.5
    assert abs(value - expected) < 2e-2 * size
    for grad, slope in zip(grads, slopes, strict=True):
        error = np.linalg.norm(np.asarray(grad, np.float32) - slope)
        assert error < 1e-2 * max(np.linalg.norm(slope), 1)


@needs_kernel
def test_a_program_exported_from_a_gpu_runs_on_other_devices():
    inputs = draw(50, 64)
    attend = jax.jit(lambda *inputs: attention.attend(*inputs, None))
    exported = jax.export.export(attend, platforms=["cpu", "cuda"])(*inputs)
    host = [jax.device_put(x, jax.devices("cpu")[0]) for x in inputs]
    here, there = (np.asarray(exported.call(*x), np.float32) for x in (inputs, host))
    assert np.linalg.norm(here - there) < 1e-2 * np.linalg.norm(there)
