"""What the programs of `triton_long_attention` do.

A class token makes the lengths of image towers a multiple of 64 and 1. So what a sequence has
beyond whole tiles is a smaller tile: 257 tokens are computed as 272, and not as 320 or 384.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from big_align.parallel.kernels.triton_tiles import binary_scale, load_tile, round_up, store_tile

_LOWEST = -1e30
"""Below all logits, and finite."""
_ROWS, _STEP = 64, 32
"""Rows from which the warps of a Hopper GPU multiply together, and tokens of a step of a program
with fewer. Its products need more registers, of which all programs of a kernel get as many."""


class TokenTile(NamedTuple):
    """A tile of a sequence."""

    start: Any  # its first token, which may be known only when the kernel runs
    size: int
    real: int  # how many of its tokens there are

    def of(self, ref: Any) -> Any:
        """Returns its tokens of an array whose first axis is that of tokens."""
        return ref.at[pl.ds(self.start, self.size)]


class TokenTiles(NamedTuple):
    """A sequence cut into tiles: whole ones, and a smaller one for what is left."""

    tokens: int
    tile: int  # tokens of a whole one

    @property
    def whole(self) -> int:
        """Number of whole tiles."""
        return self.tokens // self.tile

    @property
    def rest(self) -> TokenTile | None:
        """The last tile, if it is not a whole one."""
        over = self.tokens % self.tile
        return TokenTile(self.whole * self.tile, round_up(over), over) if over else None

    @property
    def count(self) -> int:
        """Number of all tiles."""
        return self.whole + (self.rest is not None)

    @property
    def padded(self) -> int:
        """Tokens of all tiles."""
        return self.whole * self.tile + (self.rest.size if self.rest else 0)

    def part(self, index: Any) -> TokenTile:
        """Returns a whole tile."""
        return TokenTile(index * self.tile, self.tile, self.tile)

    def steps(self, rows: int) -> "TokenTiles":
        """Returns the tiles that a program takes in turn, which has so many rows of its own."""
        return self if rows >= _ROWS else self._replace(tile=min(self.tile, _STEP))


class AttentionWork(NamedTuple):
    """What a kernel is to do."""

    queries: TokenTiles
    keys: TokenTiles
    channels: int  # of a head
    causal: bool  # whether a query attends to no key after its own position

    @property
    def scale(self) -> float:
        """What logits are multiplied by, for powers of 2."""
        return binary_scale(self.channels)


def run_forward(work: AttentionWork, given: tuple, made: tuple) -> None:
    """Computes the output of a tile of queries, and the logarithms of its sums."""
    query_ref, key_ref, value_ref, *mask = given

    def attend(own: TokenTile) -> None:
        query = _load(work, query_ref, own)

        def step(other: TokenTile, carry: tuple) -> tuple:
            highest, total, mean = carry
            key, value = (_load(work, ref, other) for ref in (key_ref, value_ref))
            logits = triton.dot(query, key, trans_b=True)
            logits = _hide(work, logits, own, other, mask, 1)
            higher = jnp.maximum(highest, logits.max(1) * work.scale)
            powers = jnp.exp2(logits * work.scale - higher[:, None])
            less = jnp.exp2(highest - higher)
            product = triton.dot(powers.astype(value.dtype), value)
            return higher, total * less + powers.sum(1), mean * less[:, None] + product

        lowest = jnp.full((own.size,), _LOWEST)
        none = lowest, jnp.zeros((own.size,)), jnp.zeros(query.shape, jnp.float32)
        highest, total, mean = _go_through(*_see_keys(work, own), step, none)
        total = jnp.maximum(total, 1e-30)  # of a row without a key, which stays zero
        _store(work, made[0], own, mean / total[:, None])
        _store_numbers(made[1], own, highest + jnp.log2(total))

    _for_own(work.queries, attend)


def run_backward_of_queries(work: AttentionWork, given: tuple, made: tuple) -> None:
    """Computes the gradient of a tile of queries, and the sums of outputs times gradients."""
    query_ref, key_ref, value_ref, cotangent_ref, sums_ref, out_ref, *mask = given

    def attend(own: TokenTile) -> None:
        query, pulled, out = (_load(work, ref, own) for ref in (query_ref, cotangent_ref, out_ref))
        along = (out.astype(jnp.float32) * pulled.astype(jnp.float32)).sum(1)
        _store_numbers(made[1], own, along)
        sums = _load_numbers(sums_ref, own)

        def step(other: TokenTile, total: Array) -> Array:
            key, value = (_load(work, ref, other) for ref in (key_ref, value_ref))
            logits = triton.dot(query, key, trans_b=True)
            logits = _hide(work, logits, own, other, mask, 1)
            weights = jnp.exp2(logits * work.scale - sums[:, None])
            slope = weights * (triton.dot(pulled, value, trans_b=True) - along[:, None])
            return total + triton.dot(slope.astype(key.dtype), key)

        none = jnp.zeros(query.shape, jnp.float32)
        total = _go_through(*_see_keys(work, own), step, none)
        _store(work, made[0], own, total * work.channels**-0.5)

    _for_own(work.queries, attend)


def run_backward_of_keys(work: AttentionWork, given: tuple, made: tuple) -> None:
    """Computes the gradients of a tile of keys and of its values."""
    query_ref, key_ref, value_ref, cotangent_ref, sums_ref, along_ref, *mask = given

    def attend(own: TokenTile) -> None:
        key, value = (_load(work, ref, own) for ref in (key_ref, value_ref))

        def step(other: TokenTile, carry: tuple) -> tuple:
            query, pulled = (_load(work, ref, other) for ref in (query_ref, cotangent_ref))
            sums, along = (_load_numbers(ref, other) for ref in (sums_ref, along_ref))
            logits = triton.dot(key, query, trans_b=True)
            logits = _hide(work, logits, other, own, mask, 0)
            weights = jnp.exp2(logits * work.scale - sums[None])
            value_grad = carry[1] + triton.dot(weights.astype(pulled.dtype), pulled)
            slope = weights * (triton.dot(value, pulled, trans_b=True) - along[None])
            return carry[0] + triton.dot(slope.astype(query.dtype), query), value_grad

        none = (jnp.zeros(key.shape, jnp.float32),) * 2
        steps = work.queries.steps(own.size)
        first = own.start // steps.tile if work.causal else 0
        key_grad, value_grad = _go_through(steps, first, steps.whole, step, none)
        _store(work, made[0], own, key_grad * work.channels**-0.5)
        _store(work, made[1], own, value_grad)

    _for_own(work.keys, attend)


def _for_own(cut: TokenTiles, attend: Callable[[TokenTile], None]) -> None:
    """Does the work of a program for its own tile."""
    index = pl.program_id(0)
    if cut.whole:
        pl.when(index < cut.whole)(lambda: attend(cut.part(index)))
    if cut.rest:
        pl.when(index == cut.whole)(lambda: attend(cut.rest))


def _see_keys(work: AttentionWork, own: TokenTile) -> tuple[TokenTiles, int, Any]:
    """Returns the tiles of keys, and those of the whole ones that a tile of queries may see."""
    steps = work.keys.steps(own.size)
    last = -(-(own.start + own.size) // steps.tile)
    return steps, 0, jnp.minimum(steps.whole, last) if work.causal else steps.whole


def _go_through(
    cut: TokenTiles, first: Any, last: Any, step: Callable[[TokenTile, Any], Any], carry: Any
) -> Any:
    """Takes whole tiles in a loop, and then the rest of a sequence."""
    carry = jax.lax.fori_loop(first, last, lambda n, carry: step(cut.part(n), carry), carry)
    return step(cut.rest, carry) if cut.rest else carry


def _hide(
    work: AttentionWork,
    logits: Float[Array, "r c"],
    queries: TokenTile,
    keys: TokenTile,
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


def _load(work: AttentionWork, ref: Any, part: TokenTile) -> Array:
    """Loads a tile; zero where there is nothing."""
    return load_tile(part.of(ref), part.real, work.channels)


def _store(work: AttentionWork, ref: Any, part: TokenTile, x: Array) -> None:
    store_tile(part.of(ref), part.real, work.channels, x)


def _load_numbers(ref: Any, part: TokenTile) -> Float[Array, "t"]:
    """Loads a number for each token; zero where there is none."""
    if part.real == part.size:
        return triton.load(part.of(ref))
    return triton.load(part.of(ref), mask=jnp.arange(part.size) < part.real, other=0.0)


def _store_numbers(ref: Any, part: TokenTile, x: Float[Array, "t"]) -> None:
    real = None if part.real == part.size else jnp.arange(part.size) < part.real
    triton.store(part.of(ref), x, mask=real)
