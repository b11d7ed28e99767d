"""Attention on NVIDIA GPUs, with a kernel for short sequences and one for long ones.

cuDNN's kernel goes through a sequence in steps, keeps the sums of the softmax, and computes the
gradient of the queries apart. For the 50 tokens of a ViT-B/32 or the 77 of CLIP's texts one program
has all tokens of a head in one tile, and the time is that of reading and writing memory. Written
for Triton, which jax calls deprecated but has: Mosaic GPU, its successor, cannot copy 50 rows.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import Mesh
from jaxtyping import Array, Float

from big_align.parallel.kernels import triton_long_attention
from big_align.parallel.kernels.attention_dropout import drop_weights
from big_align.parallel.kernels.attention_kernels import (
    KernelSettings,
    Parts,
    Terms,
    attend_by_kernel,
)
from big_align.parallel.kernels.triton_tiles import (
    binary_scale,
    load_tile,
    round_up,
    run_kernel,
    store_tile,
)

MOST_TOKENS, MOST_ELEMENTS = 128, 128 * 64
"""Tokens of a tile, and elements of a tile of queries, keys or values, which registers hold."""
MOST_CHANNELS = triton_long_attention.MOST_CHANNELS
_LEAST_PROGRAMS = 2048
"""Programs that keep all of a GPU's processors busy: where there would be fewer, a program takes
fewer examples with the same bias."""
_FILL = float(jnp.finfo(jnp.float32).min)


class _Work(NamedTuple):
    """What a program has, and is asked for."""

    queries: int  # tokens that are real in a tile
    keys: int  # likewise
    examples: int  # that it takes in turn
    settings: KernelSettings


def fits(queries: int, keys: int, channels: int) -> bool:
    """Returns whether a program can have whole sequences."""
    tokens, width = round_up(max(queries, keys)), round_up(channels)
    return tokens <= MOST_TOKENS and tokens * width <= MOST_ELEMENTS


def attend_by_triton(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    terms: Terms,
    mesh: Mesh | None,
    interpret: bool = False,
) -> Float[Array, "b q heads c"]:
    """Computes what `models.parts.attention.attend` does, of bfloat16 or float16.

    There are at most `MOST_CHANNELS`; of long sequences, see `fits`, neither a bias nor dropout.
    Without a mesh, one device has all of the batch.
    """
    short = fits(query.shape[1], key.shape[1], query.shape[-1])
    run = _run if short else triton_long_attention.run
    arrays = query, key, value
    return attend_by_kernel(run, arrays, terms, query.shape[-1], mesh, interpret)


def _run(settings: KernelSettings, arrays: tuple, parts: Parts) -> tuple:
    """Runs a pass of the kernel for short sequences.

    Of examples that have biases by turns, as the windows of an image do, a program takes several
    with the same bias, which it then finds in the cache, and writes one sum of its gradients.
    """
    (batch, queries, heads, channels), keys = arrays[0].shape, arrays[1].shape[1]
    backward, bias = len(arrays) == 4, parts.bias
    turns = 1 if bias is None else len(bias)
    together = 1 if bias is None else _choose_together(batch // turns, heads * turns)
    work = _Work(queries, keys, together, settings)

    def split(x: Array | None) -> Array | None:
        return None if x is None else x.reshape(-1, together, turns, *x.shape[1:])

    arrays = tuple(map(split, arrays))
    parts = Parts(split(parts.mask), split(parts.seeds), bias if bias is None else bias[None])
    made = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[: 3 if backward else 1]]
    outputs = list(map(_take_tokens, made))
    if backward and bias is not None:
        made.append(jax.ShapeDtypeStruct((len(arrays[0]), *bias.shape), bias.dtype))
        outputs.append(_take_pairs(made[-1]))
    area = round_up(queries) * round_up(keys)
    body = _backward if backward else _forward
    results = run_kernel(
        functools.partial(body, work),
        f"attention_{'backward' if backward else 'forward'}",
        (heads, turns, len(arrays[0])),
        (arrays, parts),
        made,
        ((tuple(map(_take_tokens, arrays)), _take_parts(parts)), outputs),
        (4 if area <= 64 * 64 else 8, 2 if together > 1 else 1),
        2 * (5 if backward else 2) * batch * heads * area * round_up(channels),
        settings.interpret,
    )
    return *(x.reshape(batch, *x.shape[3:]) for x in results[:3]), *results[3:]


def _choose_together(examples: int, others: int) -> int:
    """Returns how many examples a program takes, of which there are so many programs in all."""
    several = [n for n in range(examples, 0, -1) if examples % n == 0]
    return next((n for n in several if examples // n * others >= _LEAST_PROGRAMS), 1)


def _take_tokens(x: Any) -> pl.BlockSpec:
    """Takes what a program has of [parts together turns tokens heads channels]."""
    _, together, _, tokens, _, channels = x.shape
    shape = None, together, None, round_up(tokens), None, round_up(channels)
    return pl.BlockSpec(shape, lambda head, turn, part: (part, 0, turn, 0, head, 0))


def _take_pairs(x: Any) -> pl.BlockSpec:
    """Takes what a program has of [parts turns heads queries keys]; a single part is of all."""
    shape, several = (None, None, None, *map(round_up, x.shape[3:])), x.shape[0] > 1
    return pl.BlockSpec(shape, lambda head, turn, part: (part * several, turn, head, 0, 0))


def _take_parts(parts: Parts) -> Parts:
    """Takes what a program has of [parts together turns keys], [parts together turns] and pairs."""
    mask, seeds, bias = parts
    if mask is not None:
        shape = None, mask.shape[1], None, round_up(mask.shape[3])
        mask = pl.BlockSpec(shape, lambda head, turn, part: (part, 0, turn, 0))
    if seeds is not None:
        shape = None, seeds.shape[1], None
        seeds = pl.BlockSpec(shape, lambda head, turn, part: (part, 0, turn))
    return Parts(mask, seeds, None if bias is None else _take_pairs(bias))


class _Head(NamedTuple):
    """The head of an example that a program computes."""

    work: _Work
    parts: Parts  # references
    number: Any  # of the head
    example: Any  # among those of the program

    def load(self, ref: Any, tokens: int) -> Array:
        """Loads queries or keys; zero where there are none."""
        return load_tile(ref.at[self.example], tokens, self.work.settings.channels)

    def store(self, ref: Any, tokens: int, x: Array) -> None:
        """Stores what is like queries or keys."""
        store_tile(ref.at[self.example], tokens, self.work.settings.channels, x)

    def find_weights(self, query: Array, key: Array) -> Float[Array, "q k"]:
        """Returns the weights; zero for keys that may not be attended to."""
        work, mask_ref = self.work, self.parts.mask
        logits = triton.dot(query, key, trans_b=True) * binary_scale(work.settings.channels)
        if self.parts.bias is not None:  # read again for each example: registers are few
            logits += load_tile(self.parts.bias, work.queries, work.keys) / math.log(2)
        row, column = _find_places(logits)
        seen = column < work.keys
        if work.settings.causal:
            seen &= column <= row
        if mask_ref is not None:
            inside = jnp.arange(logits.shape[1]) < work.keys
            mask = triton.load(mask_ref.at[self.example], mask=inside, other=0.0)
            seen &= (mask > 0)[None]
        logits = jnp.where(seen, logits, _FILL)
        powers = jnp.where(seen, jnp.exp2(logits - logits.max(1, keepdims=True)), 0.0)
        return powers / jnp.maximum(powers.sum(1, keepdims=True), 1e-30)

    def drop(self, weights: Float[Array, "q k"]) -> Float[Array, "q k"]:
        """Applies dropout to weights or to their gradients."""
        if not self.work.settings.rate:
            return weights
        seed = triton.load(self.parts.seeds.at[self.example])
        places = self.number, *_find_places(weights)
        return drop_weights(self.work.settings.rate, weights, seed, *places)


def _find_places(x: Float[Array, "q k"]) -> tuple[Array, Array]:
    """Returns the positions of queries and of keys."""
    first, second = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return first, second


def _forward(work: _Work, given: tuple, made: tuple) -> None:
    """Computes the output of a head of some examples."""
    (query_ref, key_ref, value_ref), parts = given
    number = pl.program_id(0)

    def attend(example: Any, carry: None) -> None:
        head = _Head(work, parts, number, example)
        query = head.load(query_ref, work.queries)
        key, value = (head.load(ref, work.keys) for ref in (key_ref, value_ref))
        weights = head.drop(head.find_weights(query, key))
        head.store(made[0], work.queries, triton.dot(weights.astype(value.dtype), value))

    _for_each(work.examples, attend, None)


def _backward(work: _Work, given: tuple, made: tuple) -> None:
    """Computes the gradients of the queries, keys and values of a head, and of its bias."""
    (query_ref, key_ref, value_ref, cotangent_ref), parts = given
    query_grad, key_grad, value_grad, *bias_grad = made
    number = pl.program_id(0)

    def attend(example: Any, sums: list) -> list:
        head = _Head(work, parts, number, example)
        query, cotangent = (head.load(ref, work.queries) for ref in (query_ref, cotangent_ref))
        key, value = (head.load(ref, work.keys) for ref in (key_ref, value_ref))
        weights = head.find_weights(query, key)
        rounded = head.drop(weights).astype(value.dtype)
        head.store(value_grad, work.keys, triton.dot(rounded, cotangent, trans_a=True))
        slope = head.drop(triton.dot(cotangent, value, trans_b=True))
        slope = weights * (slope - (weights * slope).sum(1, keepdims=True))
        sums = [total + slope for total in sums]
        slope = (slope * work.settings.channels**-0.5).astype(query.dtype)
        head.store(query_grad, work.queries, triton.dot(slope, key))
        head.store(key_grad, work.keys, triton.dot(slope, query, trans_a=True))
        return sums

    sums = [jnp.zeros(ref.shape, ref.dtype) for ref in bias_grad]
    for ref, total in zip(bias_grad, _for_each(work.examples, attend, sums), strict=True):
        store_tile(ref, work.queries, work.keys, total)


def _for_each(count: int, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Takes examples in turn; without a loop if there is one."""
    if count == 1:
        return step(jnp.int32(0), carry)
    return jax.lax.fori_loop(0, count, step, carry)
