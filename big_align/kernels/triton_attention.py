"""Attention on NVIDIA GPUs, with a kernel for short sequences and one for long ones.

cuDNN's kernel goes through a sequence in steps, keeps the sums of the softmax, and computes the
gradient of the queries apart. For the 50 tokens of a ViT-B/32 or the 77 of CLIP's texts one program
has all tokens of a head in one tile, and the time is that of reading and writing memory. Written
for Triton, which jax calls deprecated but has: Mosaic GPU, its successor, cannot copy 50 rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from big_align.kernels import triton_long_attention
from big_align.kernels.attention_kernels import attend_by_kernel
from big_align.kernels.triton_tiles import (
    TritonSettings,
    binary_scale,
    load_tile,
    round_up,
    run_kernel,
    store_tile,
)

MOST_TOKENS, MOST_ELEMENTS = 128, 128 * 64
"""Tokens of a tile, and elements of a tile of queries, keys or values, which registers hold."""
MOST_CHANNELS = triton_long_attention.MOST_CHANNELS
_FILL = -1e30


class _Sizes(NamedTuple):
    """What is real in the tiles of a program.

    Attributes:
      queries: tokens.
      keys: tokens.
      channels: channels of a head.
      causal: whether a query attends to no key after its own position.
    """

    queries: int
    keys: int
    channels: int
    causal: bool


def fits(queries: int, keys: int, channels: int) -> bool:
    """Returns whether a program can have whole sequences."""
    tokens, width = round_up(max(queries, keys)), round_up(channels)
    return tokens <= MOST_TOKENS and tokens * width <= MOST_ELEMENTS


def attend_by_triton(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    mask: Bool[Array, "b k"] | None,
    causal: bool,
    mesh: Mesh | None,
    interpret: bool = False,
) -> Float[Array, "b q heads c"]:
    """Computes what `models.parts.attention.attend` does, without dropout.

    Args:
      query: queries, of bfloat16 or float16, with at most `MOST_CHANNELS`.
      key: keys.
      value: values.
      mask: True where a key may be attended to; None if all may.
      causal: whether a query attends to no key after its own position.
      mesh: devices that the batch is split over; None for one that has all of it.
      interpret: whether the kernel is emulated, on any device.

    Returns:
      The weighted means of the values.
    """
    short = fits(query.shape[1], key.shape[1], query.shape[-1])
    run = _run if short else triton_long_attention.run
    return attend_by_kernel(run, TritonSettings(causal, interpret), mesh, query, key, value, mask)


def _run(settings: TritonSettings, arrays: tuple, mask: Array | None) -> tuple:
    """Runs a pass of the kernel for short sequences."""
    (batch, queries, heads, channels), keys = arrays[0].shape, arrays[1].shape[1]
    sizes = _Sizes(queries, keys, channels, settings.causal)
    backward, width = len(arrays) == 4, round_up(channels)
    made = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[: 3 if backward else 1]]

    def tile(tokens: int) -> pl.BlockSpec:
        shape = None, round_up(tokens), None, width
        return pl.BlockSpec(shape, lambda head, example: (example, 0, head, 0))

    inputs = [tile(x.shape[1]) for x in arrays]
    if mask is not None:
        inputs.append(pl.BlockSpec((None, round_up(keys)), lambda head, example: (example, 0)))
        arrays = *arrays, mask
    area = round_up(queries) * round_up(keys)
    body = _backward if backward else _forward
    return run_kernel(
        lambda *given: body(sizes, *given),
        f"attention_{'backward' if backward else 'forward'}",
        (heads, batch),
        arrays,
        made,
        (inputs, [tile(x.shape[1]) for x in made]),
        (4 if area <= 64 * 64 else 8, 1),
        2 * (5 if backward else 2) * batch * heads * area * width,
        settings.interpret,
    )


def _find_weights(sizes: _Sizes, query: Array, key: Array, mask_ref: Any) -> Float[Array, "q k"]:
    """Returns the weights of a head; zero for keys that may not be attended to."""
    logits = triton.dot(query, key, trans_b=True) * binary_scale(sizes.channels)
    shape = logits.shape
    row, column = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    seen = column < sizes.keys
    if sizes.causal:
        seen &= column <= row
    if mask_ref is not None:
        inside = jnp.arange(shape[1]) < sizes.keys
        seen &= (triton.load(mask_ref, mask=inside, other=0.0) > 0)[None]
    logits = jnp.where(seen, logits, _FILL)
    powers = jnp.where(seen, jnp.exp2(logits - logits.max(1, keepdims=True)), 0.0)
    return powers / jnp.maximum(powers.sum(1, keepdims=True), 1e-30)


def _forward(sizes: _Sizes, given: tuple, made: tuple) -> None:
    """Computes the output of a head."""
    query, key, value = (_load(sizes, *each) for each in zip(given, "qkk", strict=False))
    weights = _find_weights(sizes, query, key, *given[3:] or [None])
    _store(sizes, made[0], "q", triton.dot(weights.astype(value.dtype), value))


def _backward(sizes: _Sizes, given: tuple, made: tuple) -> None:
    """Computes the gradients of the queries, keys and values of a head."""
    loaded = (_load(sizes, *each) for each in zip(given, "qkkq", strict=False))
    query, key, value, cotangent = loaded
    weights = _find_weights(sizes, query, key, *given[4:] or [None])
    rounded = weights.astype(value.dtype)
    _store(sizes, made[2], "k", triton.dot(rounded, cotangent, trans_a=True))
    slope = triton.dot(cotangent, value, trans_b=True)
    slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
    slope = (slope * sizes.channels**-0.5).astype(query.dtype)
    _store(sizes, made[0], "q", triton.dot(slope, key))
    _store(sizes, made[1], "k", triton.dot(slope, query, trans_a=True))


def _load(sizes: _Sizes, ref: Any, kind: str) -> Array:
    """Loads queries or keys; zero where there are none."""
    tokens = sizes.queries if kind == "q" else sizes.keys
    return load_tile(ref, tokens, sizes.channels)


def _store(sizes: _Sizes, ref: Any, kind: str, x: Array) -> None:
    tokens = sizes.queries if kind == "q" else sizes.keys
    store_tile(ref, tokens, sizes.channels, x)
