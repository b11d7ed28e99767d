"""Convolution of all channels."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from big_align.models.parts import layer_weights, layers


class Convolution(nn.Module):
    """A convolution without bias, whose kernel may be sharded.

    A 1x1 convolution is computed as a matrix product: otherwise, on CPUs, XLA takes several times
    as long for the gradient of its kernel. `same_padding` pads like TensorFlow's "SAME", not by
    half the kernel on every side.
    """

    channels: int
    kernel: int
    stride: int
    kernel_init: Callable
    dtype: str
    same_padding: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        """Filters an image."""
        axes = (None, None, "channels_in", "channels_out")
        init = nn.with_logical_partitioning(self.kernel_init, axes)
        kernel = self.param("kernel", init, (self.kernel, self.kernel, x.shape[-1], self.channels))
        dtype = layers.compute_dtype(self.dtype)
        filter_rows = self._multiply if self.kernel == 1 else self._convolve()
        return layer_weights.apply_weight(filter_rows, x.astype(dtype), kernel, axes, dtype)

    def _multiply(self, x: Array, kernel: Array) -> Array:
        if self.stride > 1:
            # XLA's compiler for NVIDIA GPUs ends the process ("Check failed:
            # subdim_size_accumulator == dim_size") if it fuses this slice into the product.
            x = jax.lax.optimization_barrier(x[:, :: self.stride, :: self.stride])
        return layers.multiply_rows(x, kernel[0, 0])

    def _convolve(self) -> Callable[[Array, Array], Array]:
        return functools.partial(
            jax.lax.conv_general_dilated,
            window_strides=(self.stride, self.stride),
            padding="SAME" if self.same_padding else [(self.kernel // 2, self.kernel // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
