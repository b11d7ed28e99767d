"""Queries, keys, values and masks, and both passes of attention on them."""

import jax
import jax.numpy as jnp
import numpy as np

from big_align.models.parts import attention


def draw(tokens, heads, channels, dtype="float32", batch=3, keys=None):
    """Returns queries, keys, values and the gradient of the output."""
    lengths = tokens, keys or tokens, keys or tokens, tokens
    draws = zip(jax.random.split(jax.random.key(tokens), 4), lengths, strict=True)
    return [jax.random.normal(key, (batch, n, heads, channels), dtype) for key, n in draws]


def make_mask(batch, keys):
    """Returns a mask with holes, in which the first example has no key and the last has all."""
    mask = jax.random.bernoulli(jax.random.key(5), 0.6, (batch, keys))
    return mask.at[0].set(False).at[-1].set(True)


def both_passes(attend, arrays):
    """Returns the output, and the gradients of queries, keys and values."""

    @jax.jit
    def run(query, key, value, cotangent):
        out, pull_back = jax.vjp(attend, query, key, value)
        return out, *pull_back(cotangent)

    return run(*arrays)


def attend_plainly(mask, causal, **rest):
    return lambda q, k, v: attention.attend(q, k, v, mask, causal=causal, way="plain", **rest)


def assert_like_the_formula(attend, arrays, mask, causal, tolerance=1e-5):
    """Compares both passes with the formula in float32, all relative to the largest number."""
    got = both_passes(attend, arrays)
    exact = both_passes(attend_plainly(mask, causal), [jnp.float32(x) for x in arrays])
    assert_close(got, exact, [arrays[0], *arrays[:3]], tolerance)
    return got


def assert_close(got, exact, alike, tolerance=1e-5):
    """Compares arrays relative to the largest number, and their shapes and types with others."""
    for x, y, given in zip(got, exact, alike, strict=True):
        assert x.dtype == given.dtype and x.shape == given.shape
        np.testing.assert_allclose(
            np.asarray(x, np.float32), y, rtol=0, atol=tolerance * float(jnp.abs(y).max())
        )
