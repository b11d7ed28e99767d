"""Elementwise layers that keep their inputs for the backward pass, in the type they came in.

Differentiated step by step, a normalization or an activation keeps what it computed on the way,
much of it in float32: several times the bytes of its input. Here it keeps the input alone, which
a product has written anyway, and computes the rest again. Reading and writing memory, not
arithmetic, is what such layers take time for.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from big_align.parallel.devices import rematerialization, traced
from big_align.parallel.kernels import triton_norm
from big_align.parallel.shards import map_rows


def keep_input(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a function that keeps only its arguments for the backward pass.

    It takes activations and any weights, and is cheap to compute again.
    """

    @jax.custom_vjp
    def apply(x: Array, *weights: Array) -> Array:
        return function(x, *weights)

    def forward(x: Array, *weights: Array) -> tuple[Array, tuple]:
        return function(x, *weights), (x, *weights)

    def backward(kept: tuple, cotangent: Array) -> tuple[Array, ...]:
        x, *weights = kept
        return jax.vjp(function, again(x), *weights)[1](cotangent)

    apply.defvjp(forward, backward)
    return apply


def again(x: Array) -> Array:
    """Hides that a value was seen before; else compilers would store what was computed from it."""
    return jax.lax.optimization_barrier(x)


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The Gaussian error linear unit (Hendrycks and Gimpel, 2016), computed in float32.

    By erf, which is as near to it as float32 is to 1. `jax.nn.gelu` goes by erfc, which is also
    exact where the result is next to nothing, and takes almost three times the instructions.
    """
    wide = x.astype(jnp.float32)
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


ACTIVATIONS: dict[str, Callable] = {
    "gelu": gelu,
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "relu": nn.relu,
}


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, with statistics in float32 and in two passes."""

    epsilon: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "*b c"]) -> Float[Array, "*b c"]:
        """Normalizes every row."""
        return _normalize(self._settings(x), x, *self._weights(x))

    def _weights(self, x: Array) -> tuple[Array, Array]:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return jnp.asarray(scale), jnp.asarray(bias)

    def _settings(self, x: Array) -> "Settings":
        there = triton_norm.can_normalize(x.shape[-1], traced.traced_device())
        return Settings(self.epsilon, jnp.dtype(self.dtype), *choose_kernel(there, x.shape))


class Fork(LayerNorm):
    """A layer normalization beside which its input goes on, as at the start of a residual branch.

    The gradients of both are added where that of the normalization is computed.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "*b c"]) -> tuple[Float[Array, "*b c"], Array]:
        """Returns the rows, and the normalized rows."""
        return fork(self._settings(x), x, *self._weights(x))


class Settings(NamedTuple):
    """How rows are normalized."""

    epsilon: float  # added to the variance
    dtype: Any  # of the result
    kernel: bool  # whether a kernel does it
    mesh: Mesh | None  # devices that the rows are split over; None for one that has all of them


def choose_kernel(there: bool, shape: tuple) -> tuple[bool, Mesh | None]:
    """Returns whether a kernel that is there does for an array, and the devices that split it."""
    place = traced.weight_place()
    mesh = None if place is None or place.mesh.size == 1 else place.mesh
    if not all(isinstance(size, int) for size in shape):  # left open, as in an exported program
        return False, mesh
    # Where it is not known which devices share the rows, XLA would have to split the kernel.
    split = place is None and traced.may_be_split()
    whole = mesh is None or (len(shape) > 1 and shape[0] % mesh.size == 0)
    full = math.prod(shape) > 0
    return there and full and whole and not split and not rematerialization.is_left_out(), mesh


def on_devices(mesh: Mesh | None, function: Callable, whole: tuple, rows: tuple) -> tuple:
    """Calls a function of weights and rows on every device, for its part of the rows."""
    if mesh is None:
        return function(*whole, *rows)
    return map_rows(lambda w, r: function(*w, *r), whole, rows, mesh)


def _find_statistics(epsilon: float, x: Array) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Returns the means of rows, and one over their deviations, in float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return mean[..., 0], jax.lax.rsqrt(variance + epsilon)[..., 0]


def _forward(settings: Settings, x: Array, scale: Array, bias: Array) -> tuple[Array, tuple]:
    """Returns normalized rows, and what the backward pass needs.

    With the statistics, two numbers a row, a backward pass has one sum less to wait for.
    """
    epsilon, dtype = settings.epsilon, settings.dtype
    if settings.kernel:

        def normalize(scale: Array, bias: Array, x: Array) -> tuple:
            return triton_norm.normalize(x, scale, bias, epsilon, dtype)

        y, mean, inverse = on_devices(settings.mesh, normalize, (scale, bias), (x,))
    else:
        mean, inverse = _find_statistics(epsilon, x)
        y = (x.astype(jnp.float32) - mean[..., None]) * (inverse[..., None] * scale) + bias
    return y.astype(dtype), (x, mean, inverse, scale, bias)


def _backward(settings: Settings, kept: tuple, cotangent: Array, passed: Array | None) -> tuple:
    """Returns the gradients of rows, scale and bias, and adds what passed by to that of rows."""
    x, mean, inverse, scale, bias = kept
    if settings.kernel:

        def pull_back(scale: Array, x: Array, mean: Array, inverse: Array, *given: Array) -> tuple:
            cotangent, passed = given if len(given) == 2 else (*given, None)
            return triton_norm.pull_back(x, mean, inverse, scale, cotangent, passed)

        rows = (x, mean, inverse, cotangent) + (() if passed is None else (passed,))
        x_grad, *partial = on_devices(settings.mesh, pull_back, (scale,), rows)
        scale_grad, bias_grad = (each.sum(0) for each in partial)
    else:
        cotangent = cotangent.astype(jnp.float32)
        inverse = inverse[..., None]
        unit = (again(x).astype(jnp.float32) - mean[..., None]) * inverse
        rows = tuple(range(x.ndim - 1))
        slope = cotangent * scale
        along = (slope * unit).mean(-1, keepdims=True)
        x_grad = inverse * (slope - slope.mean(-1, keepdims=True) - unit * along)
        scale_grad, bias_grad = (cotangent * unit).sum(rows), cotangent.sum(rows)
        x_grad = x_grad.astype(x.dtype) if passed is None else x_grad.astype(x.dtype) + passed
    return x_grad, scale_grad.astype(scale.dtype), bias_grad.astype(bias.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalize(settings: Settings, x: Array, scale: Array, bias: Array) -> Array:
    return _forward(settings, x, scale, bias)[0]


_normalize.defvjp(_forward, lambda how, kept, cotangent: _backward(how, kept, cotangent, None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fork(settings: Settings, x: Array, scale: Array, bias: Array) -> tuple[Array, Array]:
    """Returns rows, and the normalized rows; what `Fork` does with its weights."""
    return x, _forward(settings, x, scale, bias)[0]


def _fork_forward(settings: Settings, x: Array, *weights: Array) -> tuple:
    y, kept = _forward(settings, x, *weights)
    return (x, y), kept


fork.defvjp(_fork_forward, lambda how, kept, both: _backward(how, kept, both[1], both[0]))
