"""Attention on NVIDIA GPUs for sequences that do not fit into one tile (Dao, 2023).

A program has a tile of queries, and goes through the keys in steps with a running softmax. The
backward pass has two kernels, since programs cannot add to each other's results: one has a tile of
queries, and the other a tile of keys. The latter computes logits transposed, so that nothing in
registers has to be.

A class token makes the lengths of image towers a multiple of 64 and 1. So what a sequence has
beyond whole tiles is a smaller tile: 257 tokens are computed as 272, and not as 320 or 384.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from big_align.kernels.triton_tiles import (
    binary_scale,
    load_tile,
    round_up,
    run_kernel,
    store_tile,
)

MOST_CHANNELS = 128
_LOWEST = -1e30
"""Below all logits, and finite."""


class Settings(NamedTuple):
    """What is asked of a kernel.

    Attributes:
      causal: whether a query attends to no key after its own position.
      interpret: whether the kernel is emulated, on any device.
    """

    causal: bool
    interpret: bool


class _Shape(NamedTuple):
    """The shape of a program.

    Attributes:
      queries: tokens of a tile of queries.
      keys: tokens of a tile of keys.
      warps: its warps.
      stages: stages in which its loop loads ahead.
    """

    queries: int
    keys: int
    warps: int
    stages: int


_FORWARD = _Shape(64, 64, 4, 2)
_QUERIES = _Shape(64, 64, 4, 2)
_KEYS = _Shape(64, 64, 4, 2)


class _Part(NamedTuple):
    """A tile of a sequence.

    Attributes:
      start: its first token, which may be known only when the kernel runs.
      size: tokens of the tile.
      real: how many of them there are.
    """

    start: Any
    size: int
    real: int

    def of(self, ref: Any) -> Any:
        """Returns its tokens of an array whose first axis is that of tokens."""
        return ref.at[pl.ds(self.start, self.size)]


class _Cut(NamedTuple):
    """A sequence cut into tiles: whole ones, and a smaller one for what is left.

    Attributes:
      tokens: its length.
      tile: tokens of a whole tile.
    """

    tokens: int
    tile: int

    @property
    def whole(self) -> int:
        """Number of whole tiles."""
        return self.tokens // self.tile

    @property
    def rest(self) -> _Part | None:
        """The last tile, if it is not a whole one."""
        over = self.tokens % self.tile
        return _Part(self.whole * self.tile, round_up(over), over) if over else None

    @property
    def count(self) -> int:
        """Number of all tiles."""
        return self.whole + (self.rest is not None)

    @property
    def padded(self) -> int:
        """Tokens of all tiles."""
        return self.whole * self.tile + (self.rest.size if self.rest else 0)

    def part(self, index: Any) -> _Part:
        """Returns a whole tile."""
        return _Part(index * self.tile, self.tile, self.tile)


class _Work(NamedTuple):
    """What a kernel is to do.

    Attributes:
      queries: tiles of the queries.
      keys: tiles of the keys.
      channels: channels of a head.
      causal: whether a query attends to no key after its own position.
    """

    queries: _Cut
    keys: _Cut
    channels: int
    causal: bool

    @property
    def scale(self) -> float:
        """What logits are multiplied by, for powers of 2."""
        return binary_scale(self.channels)


def run(settings: Settings, arrays: tuple, mask: Array | None) -> tuple:
    """Runs a pass on one device.

    Args:
      settings: what is asked for.
      arrays: queries, keys and values; and for the backward pass, what the forward pass has
        returned, and the gradient of the output.
      mask: 1 where a key may be attended to, else 0; None if all may.

    Returns:
      The output, and by head and query the logarithm to base 2 of the sum of the softmax; or the
      gradients of queries, keys and values.
    """
    query, key, value, *rest = arrays
    batch, queries, heads, _ = query.shape
    by_query = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)]
    call = functools.partial(_call, settings, mask)
    if not rest:
        return call("forward", (query, key, value), [like[0], by_query])
    out, sums, cotangent = rest
    given = query, key, value, cotangent, sums
    query_grad, along = call("queries", (*given, out), [like[0], by_query])
    return query_grad, *call("keys", (*given, along), like[1:])


def _call(
    settings: Settings, mask: Array | None, name: str, arrays: tuple, made: list
) -> tuple[Array, ...]:
    """Calls one of `_KERNELS`."""
    (batch, queries, heads, channels), keys = arrays[0].shape, arrays[1].shape[1]
    body, shape, products, by_keys = _KERNELS[name]
    cut = _Cut(queries, shape.queries), _Cut(keys, shape.keys)
    work = _Work(*cut, channels, settings.causal)

    def block(x: Any) -> pl.BlockSpec:
        if x.ndim == 3:
            return pl.BlockSpec((None, None, cut[0].padded), lambda i, j, k: (k, j, 0))
        tokens = max(part.padded for part in cut if part.tokens == x.shape[1])
        return pl.BlockSpec((None, tokens, None, round_up(channels)), lambda i, j, k: (k, 0, j, 0))

    inputs = [block(x) for x in arrays]
    if mask is not None:
        inputs.append(pl.BlockSpec((None, cut[1].padded), lambda i, j, k: (k, 0)))
        arrays = *arrays, mask
    pairs = batch * heads * cut[0].padded * cut[1].padded
    return run_kernel(
        lambda *given: body(work, *given),
        f"attention_{name}",
        (cut[by_keys].count, heads, batch),
        arrays,
        made,
        (inputs, [block(x) for x in made]),
        (shape.warps, shape.stages),
        2 * products * pairs * round_up(channels),
        settings.interpret,
    )


def _forward(work: _Work, triton: Any, given: tuple, made: tuple) -> None:
    """Computes the output of a tile of queries, and the logarithms of its sums."""
    query_ref, key_ref, value_ref, *mask = given

    def attend(own: _Part) -> None:
        query = _load(work, triton, query_ref, own)

        def step(other: _Part, carry: tuple) -> tuple:
            highest, total, mean = carry
            key, value = (_load(work, triton, ref, other) for ref in (key_ref, value_ref))
            logits = triton.dot(query, key, trans_b=True)
            logits = _hide(work, triton, logits, own, other, mask, 1)
            higher = jnp.maximum(highest, logits.max(1) * work.scale)
            powers = jnp.exp2(logits * work.scale - higher[:, None])
            less = jnp.exp2(highest - higher)
            product = triton.dot(powers.astype(value.dtype), value)
            return higher, total * less + powers.sum(1), mean * less[:, None] + product

        lowest = jnp.full((own.size,), _LOWEST)
        none = lowest, jnp.zeros((own.size,)), jnp.zeros(query.shape, jnp.float32)
        highest, total, mean = _go_through(work.keys, 0, _last(work, own), step, none)
        total = jnp.maximum(total, 1e-30)  # of a row without a key, which stays zero
        _store(work, triton, made[0], own, mean / total[:, None])
        _store_numbers(triton, made[1], own, highest + jnp.log2(total))

    _for_own(work.queries, attend)


def _backward_of_queries(work: _Work, triton: Any, given: tuple, made: tuple) -> None:
    """Computes the gradient of a tile of queries, and the sums of outputs times gradients."""
    query_ref, key_ref, value_ref, cotangent_ref, sums_ref, out_ref, *mask = given

    def attend(own: _Part) -> None:
        query, pulled, out = (
            _load(work, triton, ref, own) for ref in (query_ref, cotangent_ref, out_ref)
        )
        along = (out.astype(jnp.float32) * pulled.astype(jnp.float32)).sum(1)
        _store_numbers(triton, made[1], own, along)
        sums = _load_numbers(triton, sums_ref, own)

        def step(other: _Part, total: Array) -> Array:
            key, value = (_load(work, triton, ref, other) for ref in (key_ref, value_ref))
            logits = triton.dot(query, key, trans_b=True)
            logits = _hide(work, triton, logits, own, other, mask, 1)
            weights = jnp.exp2(logits * work.scale - sums[:, None])
            slope = weights * (triton.dot(pulled, value, trans_b=True) - along[:, None])
            return total + triton.dot(slope.astype(key.dtype), key)

        none = jnp.zeros(query.shape, jnp.float32)
        total = _go_through(work.keys, 0, _last(work, own), step, none)
        _store(work, triton, made[0], own, total * work.channels**-0.5)

    _for_own(work.queries, attend)


def _backward_of_keys(work: _Work, triton: Any, given: tuple, made: tuple) -> None:
    """Computes the gradients of a tile of keys and of its values."""
    query_ref, key_ref, value_ref, cotangent_ref, sums_ref, along_ref, *mask = given

    def attend(own: _Part) -> None:
        key, value = (_load(work, triton, ref, own) for ref in (key_ref, value_ref))

        def step(other: _Part, carry: tuple) -> tuple:
            query, pulled = (_load(work, triton, ref, other) for ref in (query_ref, cotangent_ref))
            sums, along = (_load_numbers(triton, ref, other) for ref in (sums_ref, along_ref))
            logits = triton.dot(key, query, trans_b=True)
            logits = _hide(work, triton, logits, other, own, mask, 0)
            weights = jnp.exp2(logits * work.scale - sums[None])
            slope = weights * (triton.dot(value, pulled, trans_b=True) - along[None])
            return (
                carry[0] + triton.dot(slope.astype(query.dtype), query),
                carry[1] + triton.dot(weights.astype(pulled.dtype), pulled),
            )

        first = own.start // work.queries.tile if work.causal else 0
        none = (jnp.zeros(key.shape, jnp.float32),) * 2
        key_grad, value_grad = _go_through(work.queries, first, work.queries.whole, step, none)
        _store(work, triton, made[0], own, key_grad * work.channels**-0.5)
        _store(work, triton, made[1], own, value_grad)

    _for_own(work.keys, attend)


_KERNELS = {
    "forward": (_forward, _FORWARD, 2, False),
    "queries": (_backward_of_queries, _QUERIES, 3, False),
    "keys": (_backward_of_keys, _KEYS, 4, True),
}
"""What a program does, its shape, its products, and whether it has a tile of keys."""


def _for_own(cut: _Cut, attend: Callable[[_Part], None]) -> None:
    """Does the work of a program for its own tile."""
    index = pl.program_id(0)
    if cut.whole:
        pl.when(index < cut.whole)(lambda: attend(cut.part(index)))
    if cut.rest:
        pl.when(index == cut.whole)(lambda: attend(cut.rest))


def _last(work: _Work, own: _Part) -> Any:
    """Returns the number of whole tiles of keys that a tile of queries may attend to."""
    whole, tile = work.keys.whole, work.keys.tile
    return jnp.minimum(whole, -(-(own.start + own.size) // tile)) if work.causal else whole


def _go_through(
    cut: _Cut, first: Any, last: Any, step: Callable[[_Part, Any], Any], carry: Any
) -> Any:
    """Takes whole tiles in a loop, and then the rest of a sequence."""
    carry = jax.lax.fori_loop(first, last, lambda n, carry: step(cut.part(n), carry), carry)
    return step(cut.rest, carry) if cut.rest else carry


def _hide(
    work: _Work,
    triton: Any,
    logits: Float[Array, "r c"],
    queries: _Part,
    keys: _Part,
    mask: list,
    axis: int,
) -> Float[Array, "r c"]:
    """Makes logits of keys that may not be attended to infinitely small; keys are along an axis."""
    seen = None
    if keys.real < keys.size:
        seen = jnp.arange(keys.size) < keys.real
    if mask:
        other = None if seen is None else 0.0
        seen = triton.load(keys.of(mask[0]), mask=seen, other=other) > 0
    if seen is not None:
        seen = jnp.broadcast_to(jnp.expand_dims(seen, 1 - axis), logits.shape)
    if work.causal:
        query, key = (
            part.start + jax.lax.broadcasted_iota(jnp.int32, logits.shape, along)
            for part, along in ((queries, 1 - axis), (keys, axis))
        )
        seen = key <= query if seen is None else seen & (key <= query)
    return logits if seen is None else jnp.where(seen, logits, -jnp.inf)


def _load(work: _Work, triton: Any, ref: Any, part: _Part) -> Array:
    """Loads a tile; zero where there is nothing."""
    return load_tile(triton, part.of(ref), part.real, work.channels)


def _store(work: _Work, triton: Any, ref: Any, part: _Part, x: Array) -> None:
    store_tile(triton, part.of(ref), part.real, work.channels, x)


def _load_numbers(triton: Any, ref: Any, part: _Part) -> Float[Array, "t"]:
    """Loads a number for each token; zero where there is none."""
    if part.real == part.size:
        return triton.load(part.of(ref))
    return triton.load(part.of(ref), mask=jnp.arange(part.size) < part.real, other=0.0)


def _store_numbers(triton: Any, ref: Any, part: _Part, x: Float[Array, "t"]) -> None:
    real = None if part.real == part.size else jnp.arange(part.size) < part.real
    triton.store(part.of(ref), x, mask=real)
