"""The depthwise convolution equals XLA's grouped one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from big_align.models.parts import depthwise
from big_align.parallel.meshes import BATCH_AXES, make_mesh


def make_inputs(size, kernel, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(size), 2)
    x = jax.random.normal(keys[0], (8, size, size + 1, 6), dtype)
    return x, jax.random.normal(keys[1], (kernel, kernel, 1, 6), dtype)


def value_and_gradients(conv, stride):
    def loss(x, kernel):
        y = conv(x, kernel, stride)
        return jnp.sin(y.astype(jnp.float32)).sum(), y

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


@pytest.mark.slow_repeats
@pytest.mark.parametrize(
    "size, stride, kernel", [(1, 1, 3), (1, 2, 5), (7, 1, 5), (7, 2, 3), (8, 2, 3), (8, 2, 5)]
)
def test_equals_grouped_convolution_in_value_and_gradients(size, stride, kernel):
    x, filters = make_inputs(size, kernel)
    ours = value_and_gradients(depthwise.depthwise_conv, stride)(x, filters)
    expected = value_and_gradients(depthwise._grouped_conv, stride)(x, filters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), ours, expected)


def test_adds_up_in_float32():
    x, filters = make_inputs(8, 5, jnp.bfloat16)
    exact = depthwise.depthwise_conv(x.astype(jnp.float32), filters.astype(jnp.float32), 1)
    ours = depthwise.depthwise_conv(x, filters, 1)
    np.testing.assert_array_equal(ours, exact.astype(jnp.bfloat16))


def test_eight_devices_equal_one_without_gathering_activations():
    x, filters = make_inputs(7, 3)
    mesh = make_mesh()
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec(BATCH_AXES)))
    function = value_and_gradients(depthwise.depthwise_conv, 1)
    compiled = function.lower(split, filters).compile()
    assert "all-gather" not in compiled.as_text()
    one, eight = function(x, filters), compiled(split, filters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one, eight)


@pytest.mark.parametrize(
    "platform, grouped",
    [("cpu", False), pytest.param("cuda", True, marks=pytest.mark.slow), ("tpu", True)],
)
def test_accelerators_get_the_grouped_convolution(platform, grouped):
    x, filters = make_inputs(7, 3)
    traced = value_and_gradients(depthwise.depthwise_conv, 2).trace(x, filters)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("feature_group_count = 6" in text) == grouped
