"""Rows that take part in a loss: in what precision, which values of the others, and what mean."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float


def wide(dtype: DTypeLike) -> jnp.dtype:
    """Returns float64 for float64, and float32 for every narrower type."""
    # Not `jnp.promote_types`, which refuses two types under JAX's strict promotion.
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def clear_masked(z: Float[Array, "n d"], mask: Bool[Array, " n"]) -> Float[Array, "n d"]:
    """Returns zeros in masked rows, so that values there that are not finite have no effect."""
    return jnp.where(mask[:, None], z, 0)


def mean_over(each: Float[Array, " n"], counted: Bool[Array, " n"]) -> Float[Array, ""]:
    """Returns the mean over the counted entries, 0 if there are none."""
    return divide(jnp.where(counted, each, 0).sum(), counted.sum())


def divide(total: Float[Array, "..."], count: Array) -> Float[Array, "..."]:
    """Returns totals divided by whole numbers; by 1 where nothing was counted."""
    return total / jnp.maximum(count, 1).astype(total.dtype)


def normalize_rows(
    rows: Float[Array, "n d"],
) -> tuple[Float[Array, "n d"], Float[Array, "n 1"]]:
    """Returns the directions of rows and one over their lengths; both 0 for a row of zeros."""
    square = jnp.square(rows).sum(axis=1, keepdims=True)
    zero = square <= jnp.finfo(jnp.float32).tiny
    inverse = jnp.where(zero, 0, jax.lax.rsqrt(jnp.where(zero, 1, square)))
    return rows * inverse, inverse
