"""The two passes of attention on a TPU, as programs for a part of the work that fits on the chip.

A head is told from its neighbors in the same 128 lanes by zeros: in the queries for products over
channels, in the values for products over tokens. Such a product costs what one of 128 channels
does, which is what the unit for products computes anyway, and nothing is transposed.

The backward pass makes the weights again from queries and keys, and the sums that it needs from the
weights; it reads neither the output nor any statistics of the softmax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from big_align.parallel.kernels.attention_dropout import drop_weights
from big_align.parallel.kernels.attention_kernels import KernelSettings, Parts

LANES = 128
_LOWEST = float(jnp.finfo(jnp.float32).min)

# What two operands are summed over: the channels of both, or tokens.
_CHANNELS, _KEYS, _QUERIES = ((1,), (1,)), ((1,), (0,)), ((0,), (0,))


class Share(NamedTuple):
    """What a program has, and how it takes it."""

    channels: int  # of a head
    examples: int  # of a program
    lanes: int  # channels of all heads of a program
    period: int  # channels after which heads lie in their lanes as before
    rows: int  # queries that are taken at once

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The whole groups of 128 lanes that each head of a period lies in: start and stop."""
        starts = range(0, self.period, self.channels)
        return [
            (start // LANES * LANES, min(round_up(start + self.channels, LANES), self.period))
            for start in starts
        ]


def round_up(size: int, unit: int) -> int:
    """Returns the next multiple of a unit."""
    return -(-size // unit) * unit


class _Logits(NamedTuple):
    """What the logits of some queries of a head are besides products."""

    settings: KernelSettings
    parts: Parts  # references
    example: Any  # among those of the program
    head: Any  # among those of the program
    number: Any  # the head among all; only dropout needs it
    row: Any  # position of the first query

    def weigh(self, query: Array, key: Array) -> tuple[Array, Array]:
        """Returns the weights before they are divided by their sums, and the inverse sums.

        Queries are scaled, with zeros in the lanes of other heads.
        """
        logits, real = _multiply(query, key, _CHANNELS), None
        if self.parts.bias is not None:
            logits += self.parts.bias[self.head, pl.ds(self.row, len(logits))]
        if self.parts.mask is not None:
            real = jnp.broadcast_to(self.parts.mask[self.example] > 0, logits.shape)
        if self.settings.causal:
            past = self._positions(logits, 0) >= self._positions(logits, 1)
            real = past if real is None else real & past
        if real is not None:
            logits = jnp.where(real, logits, _LOWEST)
        weights = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
        if real is not None:
            weights = jnp.where(real, weights, 0.0)
        # The largest weight is 1, so that a sum below it is that of a row without any key.
        return weights, 1.0 / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1.0)

    def drop(self, weights: Array) -> Array:
        """Applies dropout to weights or to their gradients."""
        if not self.settings.rate:
            return weights
        places = self.number, self._positions(weights, 0), self._positions(weights, 1)
        return drop_weights(self.settings.rate, weights, self.parts.seeds[self.example], *places)

    def _positions(self, x: Array, axis: int) -> Array:
        first = self.row if axis == 0 else 0
        return first + jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)


def run_forward(
    share: Share, settings: KernelSettings, arrays: tuple, parts: Parts, out: Any
) -> None:
    """Computes the means of the values, from references to what is given to that of the output."""
    query, key, value = arrays
    earlier = _count_earlier_heads(share, settings)

    def run_head(example: Any, first: Any, head: int, span: tuple[int, int]) -> None:
        at, ones, own = _lanes(first, span), _ones(head, share, span), _count(share, first) + head
        k, v = key[example, :, at], _scale(value[example, :, at], ones)
        scales = ones * share.channels**-0.5

        def run_rows(row: Any, size: int) -> None:
            logits = _Logits(settings, parts, example, own, earlier + own, row)
            rows = pl.ds(row, size)
            weights, inverse = logits.weigh(_scale(query[example, rows, at], scales), k)
            mean = _multiply(logits.drop(weights).astype(v.dtype), v, _KEYS) * inverse
            _add(out, (example, rows, at), mean)

        _for_each(query.shape[1], share.rows, run_rows)

    def run_group(example: Any, first: Any) -> None:
        _clear(out, example, first, share)
        for head, span in enumerate(share.spans):
            run_head(example, first, head, span)

    _for_each_group(query.shape[0], share, run_group)


def run_backward(
    share: Share, settings: KernelSettings, arrays: tuple, parts: Parts, *made: Any
) -> None:
    """Computes the gradients of queries, keys, values and bias; two sums in float32 come last."""
    query, key, value, cotangent = arrays
    q_grad, k_grad, v_grad, *bias_grad, k_sum, v_sum = made
    earlier = _count_earlier_heads(share, settings)

    def run_head(example: Any, first: Any, head: int, span: tuple[int, int]) -> None:
        at, ones, own = _lanes(first, span), _ones(head, share, span), _count(share, first) + head
        scales, lanes = ones * share.channels**-0.5, slice(*span)
        k, v = key[example, :, at], value[example, :, at]

        def run_rows(row: Any, size: int) -> None:
            logits = _Logits(settings, parts, example, own, earlier + own, row)
            rows = pl.ds(row, size)
            q = _scale(query[example, rows, at], scales)
            weights, inverse = logits.weigh(q, k)
            # Weights are divided by their sums where there are few numbers: in the cotangent.
            g = _scale(cotangent[example, rows, at], ones * inverse)
            slope = logits.drop(_multiply(g, v, _CHANNELS))
            mean = inverse * jnp.sum(weights * slope, axis=1, keepdims=True)
            slope = weights * (slope - mean)
            for ref in bias_grad:
                ref[own, rows] += slope
            slope = slope.astype(q.dtype)
            _add(q_grad, (example, rows, at), _multiply(slope, _scale(k, scales), _KEYS))
            k_sum[:, lanes] += _multiply(slope, q, _QUERIES)
            v_sum[:, lanes] += _multiply(logits.drop(weights).astype(g.dtype), g, _QUERIES)

        _for_each(query.shape[1], share.rows, run_rows)

    def run_group(example: Any, first: Any) -> None:
        _clear(q_grad, example, first, share)
        k_sum[...], v_sum[...] = jnp.zeros_like(k_sum), jnp.zeros_like(v_sum)
        for head, span in enumerate(share.spans):
            run_head(example, first, head, span)
        group = pl.ds(first, share.period)
        k_grad[example, :, group] = k_sum[...].astype(k_grad.dtype)
        v_grad[example, :, group] = v_sum[...].astype(v_grad.dtype)

    @pl.when(pl.program_id(2) == 0)  # those with the same bias run in turn along this axis
    def clear() -> None:
        for ref in bias_grad:
            ref[...] = jnp.zeros_like(ref)

    _for_each_group(query.shape[0], share, run_group)


def _count(share: Share, lanes: Any) -> Any:
    """Returns the number of heads in so many lanes."""
    return jax.lax.div(lanes, jnp.int32(share.channels))  # neither is negative


def _count_earlier_heads(share: Share, settings: KernelSettings) -> Any:
    """Returns the number of heads that earlier programs have; 0 if nobody needs it."""
    return pl.program_id(1) * (share.lanes // share.channels) if settings.rate else 0


def _multiply(x: Array, y: Array, axes: tuple) -> Array:
    return jax.lax.dot_general(x, y, (axes, ((), ())), preferred_element_type=jnp.float32)


def _scale(x: Array, factors: Array) -> Array:
    return (x.astype(jnp.float32) * factors).astype(x.dtype)


def _add(ref: Any, at: tuple, x: Array) -> None:
    """Adds what is zero wherever another head has added, so that nothing is rounded twice."""
    ref[at] = (ref[at].astype(jnp.float32) + x).astype(ref.dtype)


def _clear(ref: Any, example: Any, first: Any, share: Share) -> None:
    zeros = jnp.zeros((ref.shape[1], share.period), ref.dtype)
    ref[example, :, pl.ds(first, share.period)] = zeros


def _lanes(first: Any, span: tuple[int, int]) -> Any:
    start = first + span[0]
    start = start if isinstance(start, int) else pl.multiple_of(start, LANES)
    return pl.ds(start, span[1] - span[0])


def _ones(head: int, share: Share, span: tuple[int, int]) -> Array:
    """Returns 1 in the lanes of a head and 0 in the others of its span."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, span[1] - span[0]), 1) + span[0]
    own = (lane >= head * share.channels) & (lane < (head + 1) * share.channels)
    return own.astype(jnp.float32)


def _for_each(total: int, size: int, run: Callable[[Any, int], None]) -> None:
    """Calls `run(start, length)` for parts of `size`, and for what is left over."""
    whole = total // size
    if whole == 1:
        run(0, size)
    else:
        jax.lax.fori_loop(0, whole, lambda i, _: run(pl.multiple_of(i * size, size), size), None)
    if total % size:
        run(whole * size, total % size)


def _for_each_group(examples: int, share: Share, run: Callable[[Any, Any], None]) -> None:
    """Calls `run(example, lane)` for the examples and the periods of a program's lanes.

    Two at a time: what one waits for, the other may use.
    """
    groups = share.lanes // share.period
    if examples * groups == 1:
        run(0, 0)
        return

    def run_number(number: Any, _: None) -> None:
        # By `jax.lax`, since no number is negative.
        example = jax.lax.div(number, jnp.int32(groups))
        run(example, pl.multiple_of((number - example * groups) * share.period, share.period))

    jax.lax.fori_loop(0, examples * groups, run_number, None, unroll=2 - examples * groups % 2)
