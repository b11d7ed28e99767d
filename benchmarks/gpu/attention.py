"""Attention, forward and backward, at the lengths of CLIP's towers, in every way."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import ways
from benchmarks.gpu.session import Row, Session, compile_call, measure_turns
from big_align.models.parts.attention import attend

HEADS, WIDTH = 12, 64


def _differentiate(function: Any) -> Any:
    def run(query: jax.Array, key: jax.Array, value: jax.Array, cotangent: jax.Array) -> Any:
        result, pull = jax.vjp(function, query, key, value)
        return result, pull(cotangent)

    return run


def measure_attention(session: Session, tokens: int, batch: int) -> list[Row]:
    """Times every way at one length in bfloat16, with as many heads as a ViT-B."""
    batch, tokens, heads = (2, tokens // 10, 2) if session.tiny else (batch, tokens, HEADS)
    shape = batch, tokens, heads, WIDTH
    arrays = [jax.random.normal(jax.random.key(n), shape, jnp.bfloat16) for n in range(4)]

    def ours(*x: jax.Array, **way: Any) -> jax.Array:
        return attend(*x, None, **way)

    makers = {
        name: functools.partial(
            compile_call, _differentiate(functools.partial(ours, **way)), *arrays
        )
        for name, way in ways.ATTENTION.items()
    }
    # Two products forward and four backward; four arrays are read and written once forward, and
    # seven backward: the three and the cotangent, and three gradients.
    flops = 6 * 2 * batch * heads * tokens**2 * WIDTH
    return measure_turns(session, makers, session.bound(flops, 11 * arrays[0].nbytes), ways.PLAIN)
