"""Attention, forward and backward, at the lengths of CLIP's towers, in every way."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import ways
from benchmarks.gpu.calls import compile_call
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.models.parts.attention import attend

HEADS, WIDTH = 12, 64


def _differentiate(function: Any) -> Any:
    def run(*arrays: jax.Array) -> Any:
        result, pull = jax.vjp(function, *arrays[:-1])
        return result, pull(arrays[-1])

    return run


def measure_attention(session: Session, tokens: int, batch: int) -> list[Row]:
    """Times every way at one length in bfloat16, with as many heads as a ViT-B."""
    batch, tokens, heads = (2, tokens // 10, 2) if session.tiny else (batch, tokens, HEADS)
    return _measure(session, (batch, tokens, heads, WIDTH), 0)


def measure_windows(session: Session) -> list[Row]:
    """Times every way for the windows of 256 images, as the first blocks of a Swin-T have them."""
    windows, images = (2, 2) if session.tiny else (64, 256)
    return _measure(session, (windows * images, 49, 3, 32), windows)


def _measure(session: Session, shape: tuple[int, int, int, int], biases: int) -> list[Row]:
    batch, tokens, heads, width = shape
    arrays = [jax.random.normal(jax.random.key(n), shape, jnp.bfloat16) for n in range(4)]
    if biases:
        arrays.insert(3, jax.random.normal(jax.random.key(4), (biases, heads, tokens, tokens)))

    def ours(query: Any, key: Any, value: Any, bias: Any = None, **way: Any) -> jax.Array:
        return attend(query, key, value, None, bias=bias, **way)

    makers = {
        name: functools.partial(
            compile_call, _differentiate(functools.partial(ours, **way)), *arrays
        )
        for name, way in ways.ATTENTION.items()
    }
    # Two products forward and four backward; four arrays are read and written once forward, and
    # seven backward: the three and the cotangent, and three gradients.
    flops = 6 * 2 * batch * heads * tokens**2 * width
    return measure_turns(session, makers, session.bound(flops, 11 * arrays[0].nbytes), ways.PLAIN)
