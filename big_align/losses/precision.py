"""The precision in which losses compute, whatever that of the embeddings."""

import jax.numpy as jnp
from jax.typing import DTypeLike


def wide(dtype: DTypeLike) -> jnp.dtype:
    """Returns float64 for float64, and float32 for every narrower type."""
    # Not `jnp.promote_types`, which refuses two types under JAX's strict promotion.
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
