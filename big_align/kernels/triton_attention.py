"""Attention on NVIDIA GPUs for short sequences: one program has all tokens of a head.

cuDNN's kernel goes through a sequence in steps, keeps the sums of the softmax, and computes the
gradient of the queries apart. For the 50 tokens of a ViT-B/32 or the 77 of CLIP's texts one tile
holds all, and the time is that of reading and writing memory. Written for Triton, which jax calls
deprecated but has: Mosaic GPU, its successor, cannot copy 50 rows.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from big_align.devices import traced
from big_align.kernels.stated_flops import state_flops
from big_align.kernels.whole_sequences import attend_whole

DTYPES = ("bfloat16", "float16")
LEAST_CAPABILITY = 8.0
MOST_TOKENS, MOST_ELEMENTS = 128, 128 * 64
"""Tokens of a tile, and elements of a tile of queries, keys or values, which registers hold."""
_SMALLEST = 16  # of a product
_FILL = -1e30


class _Settings(NamedTuple):
    causal: bool
    interpret: bool


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

    @property
    def scale(self) -> float:
        """What logits are multiplied by, for powers of 2."""
        return self.channels**-0.5 / math.log(2)


def round_up(size: int) -> int:
    """Returns the edge of the tile for so many tokens or channels: a power of 2."""
    return max(_SMALLEST, 1 << (size - 1).bit_length())


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
      query: queries, of a type in `DTYPES`, and so many that they `fits`.
      key: keys.
      value: values.
      mask: True where a key may be attended to; None if all may.
      causal: whether a query attends to no key after its own position.
      mesh: devices that the batch is split over; None for one that has all of it.
      interpret: whether the kernel is emulated, on any device.

    Returns:
      The weighted means of the values.
    """
    return attend_whole(_run, _Settings(causal, interpret), mesh, query, key, value, mask)


def _run(settings: _Settings, arrays: tuple, made: list, mask: Array | None) -> tuple:
    from jax.experimental.pallas import triton  # Only here: it takes seconds.

    (batch, queries, heads, channels), keys = arrays[0].shape, arrays[1].shape[1]
    sizes = _Sizes(queries, keys, channels, settings.causal)
    backward, width = len(arrays) == 4, round_up(channels)

    def tile(tokens: int) -> pl.BlockSpec:
        shape = None, round_up(tokens), None, width
        return pl.BlockSpec(shape, lambda head, example: (example, 0, head, 0))

    inputs = [tile(x.shape[1]) for x in arrays]
    if mask is not None:
        inputs.append(pl.BlockSpec((None, round_up(keys)), lambda head, example: (example, 0)))
        arrays = *arrays, mask
    pairs = batch * heads * round_up(queries) * round_up(keys)
    body = _backward if backward else _forward

    def program(*refs: jax.Ref) -> None:
        body(sizes, triton, refs[: len(arrays)], refs[len(arrays) :])

    call = pl.pallas_call(
        program,
        grid=(heads, batch),
        in_specs=inputs,
        out_specs=[tile(x.shape[1]) for x in made],
        out_shape=made,
        compiler_params=triton.CompilerParams(
            num_warps=4 if round_up(queries) * round_up(keys) <= 64 * 64 else 8, num_stages=1
        ),
        interpret=settings.interpret,
        name=f"attention_{'backward' if backward else 'forward'}",
    )
    with traced.describing(), state_flops(2 * (5 if backward else 2) * pairs * width):
        return call(*arrays)


def _real(shape: tuple[int, int], sizes: tuple[int, int]) -> Bool[Array, "r c"]:
    """Returns which elements of a tile are real."""
    iota = jax.lax.broadcasted_iota
    return (iota(jnp.int32, shape, 0) < sizes[0]) & (iota(jnp.int32, shape, 1) < sizes[1])


def _find_weights(
    sizes: _Sizes, triton: Any, query: Array, key: Array, mask_ref: Any
) -> Float[Array, "q k"]:
    """Returns the weights of a head; zero for keys that may not be attended to."""
    logits = triton.dot(query, key, trans_b=True) * sizes.scale
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


def _forward(sizes: _Sizes, triton: Any, given: tuple, made: tuple) -> None:
    """Computes the output of a head."""
    query, key, value = (_load(sizes, triton, *each) for each in zip(given, "qkk", strict=False))
    weights = _find_weights(sizes, triton, query, key, *given[3:] or [None])
    _store(sizes, triton, made[0], "q", triton.dot(weights.astype(value.dtype), value))


def _backward(sizes: _Sizes, triton: Any, given: tuple, made: tuple) -> None:
    """Computes the gradients of the queries, keys and values of a head."""
    loaded = (_load(sizes, triton, *each) for each in zip(given, "qkkq", strict=False))
    query, key, value, cotangent = loaded
    weights = _find_weights(sizes, triton, query, key, *given[4:] or [None])
    rounded = weights.astype(value.dtype)
    _store(sizes, triton, made[2], "k", triton.dot(rounded, cotangent, trans_a=True))
    slope = triton.dot(cotangent, value, trans_b=True)
    slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
    slope = (slope * sizes.channels**-0.5).astype(query.dtype)
    _store(sizes, triton, made[0], "q", triton.dot(slope, key))
    _store(sizes, triton, made[1], "k", triton.dot(slope, query, trans_a=True))


def _load(sizes: _Sizes, triton: Any, ref: Any, kind: str) -> Array:
    """Loads queries or keys; zero where there are none."""
    real = sizes.queries if kind == "q" else sizes.keys, sizes.channels
    return triton.load(ref, mask=_real(ref.shape, real), other=0.0)


def _store(sizes: _Sizes, triton: Any, ref: Any, kind: str, x: Array) -> None:
    real = sizes.queries if kind == "q" else sizes.keys, sizes.channels
    triton.store(ref, x.astype(ref.dtype), mask=_real(ref.shape, real))
