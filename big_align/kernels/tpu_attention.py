"""Attention on TPUs for sequences that fit on the chip: weights are never written to memory.

A program of the kernel has whole sequences of some examples and heads, so that a softmax needs no
second pass. Arrays keep the layout that projections give them, [batch, tokens, heads * channels].
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from big_align import sharding
from big_align.devices.rematerialization import keep_result
from big_align.kernels.tpu_attention_passes import LANES, Share, round_up, run_backward, run_forward

DTYPES = ("bfloat16", "float32")
VECTOR_MEMORY = 14 * 2**20
"""Bytes that a program may take; libtpu refuses more than 16 MiB unless told otherwise."""
MOST_EXAMPLES = 8
LOGITS = 5 * 2**18
"""Bytes of a head's logits for the queries that are taken at once."""


class _Settings(NamedTuple):
    channels: int
    causal: bool
    mesh: Mesh | None
    interpret: bool


def choose_share(
    query: tuple[int, int, int, int],
    keys: int,
    item: int,
    causal: bool = False,
    masked: bool = False,
    backward: bool = True,
) -> Share | None:
    """Cuts the work so that a program fits into a TPU's vector memory.

    Args:
      query: batch of one device, queries, heads and channels.
      keys: number of keys.
      item: bytes of an element.
      causal: whether a query attends to no key after its own position.
      masked: whether there is a mask.
      backward: whether it is for the backward pass, which takes more memory.

    Returns:
      The largest parts that fit, None if none do.
    """
    batch, queries, heads, channels = query
    width, period = heads * channels, math.lcm(channels, LANES)
    period = width if width % period else period
    tile = 32 // item  # rows of a tile
    tall, long, wide = (round_up(x, y) for x, y in ((queries, tile), (keys, tile), (keys, LANES)))
    chunks = -(-4 * tall * wide // LOGITS)
    rows = min(round_up(-(-queries // chunks), tile), queries)
    # Queries, outputs and their gradients; keys, values and their gradients; sums in float32.
    arrays = 3 * tall + 4 * long if backward else 2 * tall + 2 * long
    fixed = 16 * rows * wide + (8 * long * round_up(period, LANES) if backward else 0)

    def fits(examples: int, lanes: int) -> bool:
        moving = 2 * examples * arrays * round_up(lanes, LANES) * item
        return fixed + moving <= VECTOR_MEMORY

    divisors = [n for n in range(width // period, 0, -1) if width // period % n == 0]
    lanes = next((n * period for n in divisors if fits(1, n * period)), None)
    if lanes is None:
        return None
    several = [n for n in range(min(batch, MOST_EXAMPLES), 0, -1) if batch % n == 0]
    examples = next(n for n in several if fits(n, lanes))
    return Share(channels, causal, masked, examples, lanes, period, rows)


def attend_on_tpu(
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
      query: queries, of a type in `DTYPES`.
      key: keys.
      value: values.
      mask: True where a key may be attended to; None if all may.
      causal: whether a query attends to no key after its own position.
      mesh: devices that the batch is split over; None for one that has all of it.
      interpret: whether the kernel is emulated, on any device.

    Returns:
      The weighted means of the values.

    Raises:
      ValueError: a sequence does not fit, see `choose_share`.
    """
    settings = _Settings(query.shape[-1], causal, mesh, interpret)
    flat = [x.reshape(*x.shape[:2], -1) for x in (query, key, value)]
    rows = None if mask is None else mask.astype(jnp.float32)[:, None]
    return _attend(settings, *flat, rows).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: _Settings, query: Array, key: Array, value: Array, mask: Array | None):
    return _run(run_forward, settings, (query, key, value), (query,), mask)[0]


def _attend_forward(settings: _Settings, query: Array, key: Array, value: Array, mask: Any):
    out = keep_result(_attend(settings, query, key, value, mask))
    return out, (query, key, value, mask)


def _attend_backward(settings: _Settings, residuals: tuple, cotangent: Array) -> tuple:
    *given, mask = residuals
    grads = _run(run_backward, settings, (*given, cotangent), tuple(given), mask)
    return *grads, None if mask is None else jnp.zeros_like(mask)


_attend.defvjp(_attend_forward, _attend_backward)


def _run(
    kernel: Callable, settings: _Settings, given: tuple, made: tuple, mask: Array | None
) -> tuple:
    """Runs a kernel on every device, on its part of the batch.

    Args:
      kernel: `run_forward` or `run_backward`.
      settings: their settings.
      given: its inputs besides the mask.
      made: arrays of the shapes and types of its outputs.
      mask: the mask as numbers, [batch, 1, keys].
    """
    shapes = [(x.shape[1:], x.dtype) for x in made]

    def on_device(_: tuple, arrays: tuple) -> tuple:
        return _call(kernel, settings, arrays, shapes, mask is not None)

    arrays = given if mask is None else (*given, mask)
    if settings.mesh is None:
        return on_device((), arrays)
    return sharding.map_rows(on_device, (), arrays, settings.mesh)


def _call(
    kernel: Callable, settings: _Settings, arrays: tuple, shapes: list, masked: bool
) -> tuple:
    (batch, queries, width), keys = arrays[0].shape, arrays[1].shape[1]
    channels, causal, _, interpret = settings
    backward, item = kernel is run_backward, arrays[0].dtype.itemsize
    query = batch, queries, width // channels, channels
    share = choose_share(query, keys, item, causal, masked, backward)
    if share is None:
        raise ValueError(f"a sequence of {keys} keys with {width} channels does not fit")

    def block(tokens: int) -> pl.BlockSpec:
        return pl.BlockSpec((share.examples, tokens, share.lanes), lambda i, j: (i, 0, j))

    inputs = [block(x.shape[1]) for x in arrays[: len(arrays) - masked]]
    if masked:
        inputs.append(pl.BlockSpec((share.examples, 1, keys), lambda i, j: (i, 0, 0)))
    pairs, products = batch * queries * keys, 5 if backward else 2
    multiplied = sum(stop - start for start, stop in share.spans) * (width // share.period)
    made = [jax.ShapeDtypeStruct((batch, *shape), dtype) for shape, dtype in shapes]
    return pl.pallas_call(
        functools.partial(kernel, share),
        grid=(batch // share.examples, width // share.lanes),
        in_specs=inputs,
        out_specs=[block(shape[0]) for shape, _ in shapes],
        out_shape=made,
        scratch_shapes=[pltpu.VMEM((keys, share.period), jnp.float32)] * (2 if backward else 0),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * pairs * multiplied,
            transcendentals=pairs * (width // channels),
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *made)),
        ),
        interpret=interpret,
        name=f"attention_{'backward' if backward else 'forward'}",
    )(*arrays)
