"""Attention on TPUs for sequences that fit on the chip: weights are never written to memory.

A program of the kernel has whole sequences of some examples and heads, so that a softmax needs no
second pass. Arrays keep the layout that projections give them, [batch, tokens, heads * channels].
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from big_align.kernels.attention_kernels import attend_by_kernel
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
    flat = (x.reshape(*x.shape[:2], -1) for x in (query, key, value))
    settings = _Settings(query.shape[-1], causal, interpret)
    return attend_by_kernel(_run, settings, mesh, *flat, mask).reshape(query.shape)


def _run(settings: _Settings, arrays: tuple, mask: Array | None) -> tuple:
    (batch, queries, width), keys = arrays[0].shape, arrays[1].shape[1]
    channels, causal, interpret = settings
    backward, item, masked = len(arrays) == 4, arrays[0].dtype.itemsize, mask is not None
    made = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[: 3 if backward else 1]]
    query = batch, queries, width // channels, channels
    share = choose_share(query, keys, item, causal, masked, backward)
    if share is None:
        raise ValueError(f"a sequence of {keys} keys with {width} channels does not fit")

    def block(tokens: int) -> pl.BlockSpec:
        return pl.BlockSpec((share.examples, tokens, share.lanes), lambda i, j: (i, 0, j))

    inputs = [block(x.shape[1]) for x in arrays]
    if masked:
        arrays = *arrays, mask[:, None]
        inputs.append(pl.BlockSpec((share.examples, 1, keys), lambda i, j: (i, 0, 0)))
    pairs, products = batch * queries * keys, 5 if backward else 2
    multiplied = sum(stop - start for start, stop in share.spans) * (width // share.period)
    return pl.pallas_call(
        functools.partial(run_backward if backward else run_forward, share),
        grid=(batch // share.examples, width // share.lanes),
        in_specs=inputs,
        out_specs=[block(x.shape[1]) for x in made],
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
