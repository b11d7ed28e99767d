"""Depthwise convolution, fast on accelerators and on CPUs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def depthwise_conv(
    x: Float[Array, "b h w c"], kernel: Float[Array, "k k 1 c"], stride: int
) -> Float[Array, "b h2 w2 c"]:
    """Convolves every channel separately, with TensorFlow's "SAME" padding."""
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=lambda x, kernel: _shifted_conv(x, kernel, stride),
        default=lambda x, kernel: _grouped_conv(x, kernel, stride),
    )


def _grouped_conv(x, kernel, stride):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )


def _sum_of_shifts(x, kernel, stride):
    offsets = np.ndindex(kernel.shape[:2])
    windows = _windows(x, kernel.shape[0], stride)
    pairs = zip(windows, offsets, strict=True)
    products = (window.astype(jnp.float32) * kernel[i, j, 0] for window, (i, j) in pairs)
    return sum(products).astype(x.dtype)


# On CPUs, XLA 0.10 has no fast depthwise convolution. In one run on two busy cores, float32,
# forward and backward: [64 32 32 96] with 3x3 filters took 150 and 360 ms as a grouped convolution,
# 5 and 19 ms this way; with 5x5 filters 267 and 573, 9 and 96; [64 8 8 480] with 5x5 filters and
# stride 2 took 26 and 514, 2 and 27. The gradients are written out because differentiating the sum
# passes over the activations once for each element of the filter (149 ms instead of 19 for the
# gradient of the filter; 0.5 s of 1.6 s of EfficientNet-B0 at batch 8 for that of the input).
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _shifted_conv(x, kernel, stride):
    return _sum_of_shifts(x, kernel, stride)


def _shifted_conv_forward(x, kernel, stride):
    return _sum_of_shifts(x, kernel, stride), (x, kernel)


def _shifted_conv_backward(stride, residuals, cotangent):
    x, kernel = residuals
    wide = cotangent.astype(jnp.float32)
    products = tuple(window * wide for window in _windows(x, kernel.shape[0], stride))
    zeros = (jnp.float32(0.0),) * len(products)

    def add(a, b):
        return tuple(p + q for p, q in zip(a, b, strict=True))

    # One reduction for all elements of the filter. The sum over the batch is separate, since XLA
    # knows how to split that one over devices.
    sums = jnp.stack(jax.lax.reduce(products, zeros, add, (1, 2)))
    x_grad = _sum_back(cotangent, kernel, stride, x.shape)
    return x_grad, sums.sum(1).reshape(kernel.shape).astype(kernel.dtype)


def _sum_back(cotangent, kernel, stride, shape):
    """Returns the gradient of the input, also as a sum of shifts, of the dilated cotangent.

    Differentiating the forward sum would write a padded array for each element of the filter.
    """
    size, (height, width) = kernel.shape[0], shape[1:3]
    edges = []
    for n in (height, width):
        (before, _), reach = _same_padding(n, size, stride)
        edges.append((size - 1 - before, n + before - reach, stride - 1))
    spread = jax.lax.pad(cotangent, jnp.zeros((), cotangent.dtype), ((0, 0, 0), *edges, (0, 0, 0)))
    products = (
        spread[:, i : i + height, j : j + width].astype(jnp.float32) * kernel[-1 - i, -1 - j, 0]
        for i, j in np.ndindex(kernel.shape[:2])
    )
    return sum(products).astype(cotangent.dtype)


_shifted_conv.defvjp(_shifted_conv_forward, _shifted_conv_backward)


def _windows(x, size: int, stride: int) -> list:
    """Returns the input for each element of a filter, row by row of the filter."""
    (rows, height), (columns, width) = (_same_padding(n, size, stride) for n in x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), rows, columns, (0, 0)))
    return [
        padded[:, i : i + height : stride, j : j + width : stride]
        for i in range(size)
        for j in range(size)
    ]


def _same_padding(size: int, kernel: int, stride: int) -> tuple[tuple[int, int], int]:
    """Returns the padding before and after, and the range of the windows' first elements."""
    reach = (math.ceil(size / stride) - 1) * stride + 1
    total = max(reach - 1 + kernel - size, 0)
    return (total // 2, total - total // 2), reach
