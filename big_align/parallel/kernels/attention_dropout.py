"""Dropout of the weights of attention, which every way of computing it draws alike.

Whether a weight is kept is a function of its place and of a seed. So a kernel draws a weight again
in the backward pass, where a mask would be as large as the weights that it never writes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

_ODD = -1640531527
"""2^32 over the golden ratio, as a signed number: its multiples are far apart."""
_MULTIPLIERS = -2048144789, -1028477387
_DRAWN_BITS = 24


class Dropout(NamedTuple):
    """Which weights are set to zero."""

    rate: float  # probability that one is; the others are multiplied by 1 / (1 - rate)
    key: PRNGKeyArray

    def draw_seeds(self, batch: int) -> Int[Array, "b"]:
        """Draws a seed for each example, which is the same on any number of devices."""
        bits = jax.random.bits(self.key, (batch,), "uint32")
        return jax.lax.bitcast_convert_type(bits, jnp.int32)

    def apply(self, weights: Float[Array, "b heads q k"]) -> Float[Array, "b heads q k"]:
        """Sets weights to zero, and multiplies the others."""
        seeds = self.draw_seeds(len(weights))[:, None, None, None]
        places = (jax.lax.broadcasted_iota(jnp.int32, weights.shape, axis) for axis in (1, 2, 3))
        return drop_weights(self.rate, weights, seeds, *places)


def drop_weights(rate: float, weights: Array, seed: Array, head: Array, query: Array, key: Array):
    """Sets some weights, or their gradients, to zero and multiplies the others by 1 / (1 - rate).

    Seeds are those of examples. They, heads and positions are int32, and broadcast with the
    weights; positions of keys are below 65,536.
    """
    factor = 1 / (1 - rate) if rate < 1 else 0.0
    return jnp.where(_find_kept(rate, seed, head, query, key), weights * factor, 0.0)


def _find_kept(rate: float, seed: Array, head: Array, query: Array, key: Array) -> Bool[Array, "*"]:
    """Returns which weights are kept.

    What is of a head comes in twice, so that no two have the same draws in another order. Kernels
    and the formula agree because all of them call this.
    """
    place, own = query * 65536 + key, _mix(seed + head * _ODD)
    bits = _mix(_mix(place ^ own) + own + seed)
    drawn = jax.lax.shift_right_logical(bits, jnp.int32(32 - _DRAWN_BITS))
    return drawn >= round(rate * 2**_DRAWN_BITS)


def _mix(x: Int[Array, "*"]) -> Int[Array, "*"]:
    """Changes half of all bits if one is changed (the finalizer of MurmurHash3, Appleby 2011)."""

    def fold(x: Array, bits: int) -> Array:
        return x ^ jax.lax.shift_right_logical(x, jnp.int32(bits))

    first, second = _MULTIPLIERS
    return fold(fold(fold(x, 16) * first, 13) * second, 16)
