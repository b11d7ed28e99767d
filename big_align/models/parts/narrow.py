"""Elementwise layers that keep their inputs for the backward pass, in the type they came in.

Differentiated step by step, a normalization or an activation keeps what it computed on the way,
much of it in float32: several times the bytes of its input. Here it keeps the input alone, which
a product has written anyway, and computes the rest again. Reading and writing memory, not
arithmetic, is what such layers take time for.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def keep_input(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a function that keeps only its arguments for the backward pass.

    Args:
      function: takes activations and any weights; cheap to compute again.
    """

    @jax.custom_vjp
    def apply(x: Array, *weights: Array) -> Array:
        return function(x, *weights)

    def forward(x: Array, *weights: Array) -> tuple[Array, tuple]:
        return function(x, *weights), (x, *weights)

    def backward(kept: tuple, cotangent: Array) -> tuple[Array, ...]:
        x, *weights = kept
        return jax.vjp(function, _again(x), *weights)[1](cotangent)

    apply.defvjp(forward, backward)
    return apply


def _again(x: Array) -> Array:
    """Hides that a value was seen before; else compilers would store what was computed from it."""
    return jax.lax.optimization_barrier(x)


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, with statistics in float32 and in two passes.

    Args:
      epsilon: added to the variance.
      dtype: type of the result.
    """

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
        """Normalizes every row."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return _normalize(self.epsilon, self.dtype, x, jnp.asarray(scale), jnp.asarray(bias))


def _find_statistics(epsilon: float, x: Array) -> tuple[Float[Array, "*b 1"], Float[Array, "*b 1"]]:
    """Returns the means of rows, and one over their deviations, in float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return mean, jax.lax.rsqrt(variance + epsilon)


def _normalize_forward(epsilon, dtype, x, scale, bias):
    mean, inverse = _find_statistics(epsilon, x)
    y = (x.astype(jnp.float32) - mean) * (inverse * scale) + bias
    # With the statistics, two numbers a row, a backward pass has one sum less to wait for.
    return y.astype(dtype), (x, mean, inverse, scale, bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _normalize(epsilon, dtype, x, scale, bias):
    return _normalize_forward(epsilon, dtype, x, scale, bias)[0]


def _normalize_backward(epsilon, dtype, kept, cotangent):
    x, mean, inverse, scale, bias = kept
    cotangent = cotangent.astype(jnp.float32)
    unit = (_again(x).astype(jnp.float32) - mean) * inverse
    rows = tuple(range(x.ndim - 1))
    slope = cotangent * scale
    along = (slope * unit).mean(-1, keepdims=True)
    x_grad = inverse * (slope - slope.mean(-1, keepdims=True) - unit * along)
    scale_grad, bias_grad = (cotangent * unit).sum(rows), cotangent.sum(rows)
    return x_grad.astype(x.dtype), scale_grad.astype(scale.dtype), bias_grad.astype(bias.dtype)


_normalize.defvjp(_normalize_forward, _normalize_backward)
