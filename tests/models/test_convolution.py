"""A 1x1 convolution is a matrix product, with a stride too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from big_align.models.parts.convolution import Convolution

SIZE = 7


def make_layer(stride):
    layer = Convolution(6, 1, stride, nn.initializers.normal(1.0), "float32")
    x = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE + 1, 4))
    return layer, nn.meta.unbox(layer.init(jax.random.key(1), x))["params"]["kernel"], x


@pytest.mark.slow_repeats
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_1x1_convolution_equals_xlas_in_value_and_gradients(stride):
    layer, kernel, x = make_layer(stride)

    def ours(kernel, x):
        return layer.apply({"params": {"kernel": kernel}}, x)

    def theirs(kernel, x):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "VALID", dimension_numbers=names
        )

    np.testing.assert_allclose(ours(kernel, x), theirs(kernel, x), rtol=1e-5, atol=1e-5)
    weights = jnp.cos(jnp.arange(theirs(kernel, x).size)).reshape(theirs(kernel, x).shape)
    found, expected = (
        jax.grad(lambda k, x, f=f: (weights * f(k, x)).sum(), argnums=(0, 1))(kernel, x)
        for f in (ours, theirs)
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_strided_slice_cannot_be_fused_into_the_product(stride):
    """XLA would end the process when it compiles for NVIDIA GPUs (test_gpu_topologies.py)."""
    layer, kernel, x = make_layer(stride)

    def total(kernel, x):
        return layer.apply({"params": {"kernel": kernel}}, x).sum()

    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(kernel, x).as_text()
    assert ("optimization_barrier" in program) == (stride > 1)
