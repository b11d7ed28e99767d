"""Attention on TPUs for sequences that fit on the chip: weights are never written to memory.

A program of the kernel has whole sequences of some examples and heads, so that a softmax needs no
second pass. Arrays keep the layout that projections give them, [batch, tokens, heads * channels].
Of examples that have biases by turns, as the windows of an image do, a program has those with the
same bias: it keeps the bias, and adds up its gradient.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jaxtyping import Array, Float

from big_align.parallel.kernels.attention_kernels import (
    KernelSettings,
    Parts,
    Terms,
    attend_by_kernel,
)
from big_align.parallel.kernels.tpu_attention_passes import (
    LANES,
    Share,
    round_up,
    run_backward,
    run_forward,
)

DTYPES = ("bfloat16", "float32")
VECTOR_MEMORY = 14 * 2**20
"""Bytes that a program may take; libtpu refuses more than 16 MiB unless told otherwise."""
MOST_EXAMPLES = 8
LOGITS = 5 * 2**18
"""Bytes of a head's logits for the queries that are taken at once."""


def choose_share(
    query: tuple[int, int, int, int],
    keys: int,
    item: int,
    biased: bool = False,
    dropped: bool = False,
    backward: bool = True,
) -> Share | None:
    """Cuts the work into the largest parts that fit into a TPU's vector memory; None if none do.

    `query` has examples of one device with the same bias, queries, heads and channels; `item` are
    the bytes of an element. The backward pass takes more memory.
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
    fixed = (24 if dropped else 16) * rows * wide
    fixed += 8 * long * round_up(period, LANES) if backward else 0
    bias = 4 * round_up(queries, 8) * wide * (1 + backward) if biased else 0  # and its gradient

    def fits(examples: int, lanes: int) -> bool:
        moving = examples * arrays * round_up(lanes, LANES) * item + lanes // channels * bias
        return fixed + 2 * moving <= VECTOR_MEMORY

    divisors = [n for n in range(width // period, 0, -1) if width // period % n == 0]
    lanes = next((n * period for n in divisors if fits(1, n * period)), None)
    if lanes is None:
        return None
    several = [n for n in range(min(batch, MOST_EXAMPLES), 0, -1) if batch % n == 0]
    examples = next(n for n in several if fits(n, lanes))
    return Share(channels, examples, lanes, period, rows)


def attend_on_tpu(
    query: Float[Array, "b q heads c"],
    key: Float[Array, "b k heads c"],
    value: Float[Array, "b k heads c"],
    terms: Terms,
    mesh: Mesh | None,
    interpret: bool = False,
) -> Float[Array, "b q heads c"]:
    """Computes what `models.parts.attention.attend` does, of a type in `DTYPES`."""
    flat = tuple(x.reshape(*x.shape[:2], -1) for x in (query, key, value))
    mean = attend_by_kernel(_run, flat, terms, query.shape[-1], mesh, interpret)
    return mean.reshape(query.shape)


def _run(settings: KernelSettings, arrays: tuple, parts: Parts) -> tuple:
    """Runs a pass on one device."""
    (batch, queries, width), keys = arrays[0].shape, arrays[1].shape[1]
    bias, backward = parts.bias, len(arrays) == 4
    turns = 1 if bias is None else len(bias)
    query = batch // turns, queries, width // settings.channels, settings.channels
    terms = bias is not None, settings.rate > 0
    share = choose_share(query, keys, arrays[0].dtype.itemsize, *terms, backward)
    if share is None:
        raise ValueError(f"a sequence of {keys} keys with {width} channels does not fit")

    arrays = tuple(x.reshape(-1, turns, *x.shape[1:]) for x in arrays)
    rows = (x if x is None else x.reshape(-1, turns, 1, x[0].size) for x in parts[:2])
    given = arrays, Parts(*rows, bias)
    made = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[: 3 if backward else 1]]
    summed = [] if bias is None else [jax.ShapeDtypeStruct(bias.shape, bias.dtype)] * backward
    inputs = [_take_tokens(share, x) for x in arrays]
    outputs = [_take_tokens(share, x) for x in made] + [_take_pairs(share, x) for x in summed]
    takers = Parts(_take_row, _take_row, _take_pairs)
    rest = (x if x is None else take(share, x) for take, x in zip(takers, given[1], strict=True))
    results = pl.pallas_call(
        functools.partial(run_backward if backward else run_forward, share, settings),
        grid=(turns, width // share.lanes, query[0] // share.examples),
        in_specs=(tuple(inputs), Parts(*rest)),
        out_specs=outputs,
        out_shape=made + summed,
        scratch_shapes=[pltpu.VMEM((keys, share.period), jnp.float32)] * (2 if backward else 0),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary" if summed else "parallel")
        ),
        cost_estimate=_estimate(share, (arrays, given[1], made, summed), 5 if backward else 2),
        interpret=settings.interpret,
        name=f"attention_{'backward' if backward else 'forward'}",
    )(*given)
    joined = (x.reshape(batch, *x.shape[2:]) for x in results[: len(made)])
    return *joined, *(x[None] for x in results[len(made) :])


def _take_tokens(share: Share, x: Any) -> pl.BlockSpec:
    """Takes from [examples, turns, tokens, channels] those of a program."""
    shape = share.examples, None, x.shape[2], share.lanes
    return pl.BlockSpec(shape, lambda turn, part, examples: (examples, turn, 0, part))


def _take_row(share: Share, x: Any) -> pl.BlockSpec:
    """Takes from [examples, turns, 1, keys] those of a program."""
    shape = share.examples, None, 1, x.shape[3]
    return pl.BlockSpec(shape, lambda turn, part, examples: (examples, turn, 0, 0))


def _take_pairs(share: Share, x: Any) -> pl.BlockSpec:
    """Takes from [turns, heads, queries, keys] those of a program."""
    shape = None, share.lanes // share.channels, *x.shape[2:]
    return pl.BlockSpec(shape, lambda turn, part, examples: (turn, part, 0, 0))


def _estimate(share: Share, arrays: Any, products: int) -> pl.CostEstimate:
    """Tells the compiler what a pass costs."""
    (query, key, *_), *_ = arrays
    (*examples, queries, width), keys = query.shape, key.shape[2]
    pairs = math.prod(examples) * queries * keys
    multiplied = sum(stop - start for start, stop in share.spans) * (width // share.period)
    return pl.CostEstimate(
        flops=2 * products * pairs * multiplied,
        transcendentals=pairs * (width // share.channels),
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arrays)),
    )
