"""Normalization on NVIDIA GPUs: each pass reads its rows once.

XLA makes three kernels of the forward pass of a layer normalization, since a row is needed after
its statistics are known, and of the backward pass three more. Here a warp has a row in registers.
Of a batch normalization, XLA makes all but sums of what takes an exponential: it would write what
it sums, in float32.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from big_align.parallel.devices import traced

MOST_CHANNELS = 2048
"""Channels of a row that registers hold."""
_ROWS = 4
"""Rows that a program has at a time."""
_WIDE = 1024
"""Channels that a warp has; a wider row takes two."""
_LONG, _PROGRAMS = 64, 264
"""Rows of a program of the backward pass at most, and programs that there should be at the least.
Each writes one row of the sums for the weights."""
_TILE = 8, 128
"""Positions and channels of a tile of a batch normalization's map."""
_AHEAD = 4
"""Tiles that a program reads before it computes: so many bytes have to be on their way."""


def has_kernels(device: Any) -> bool:
    """Returns whether there are kernels for a device."""
    return (
        device.platform == "gpu"
        and "NVIDIA" in device.device_kind
        and jax.__version_info__ >= (0, 11)
        and float(device.compute_capability) >= 8
    )


def can_normalize(channels: int, device: Any) -> bool:
    """Returns whether there are kernels for rows of a width on a device."""
    return has_kernels(device) and _LONG <= channels <= MOST_CHANNELS


def normalize(
    x: Float[Array, "*b c"],
    scale: Float[Array, "c"],
    bias: Float[Array, "c"],
    epsilon: float,
    dtype: jnp.dtype,
) -> tuple[Float[Array, "*b c"], Float[Array, "*b"], Float[Array, "*b"]]:
    """Returns normalized rows; the means of rows; and one over their deviations."""
    *leading, channels = x.shape
    count = math.prod(leading)
    vector = jax.ShapeDtypeStruct((count,), jnp.float32)
    rows, whole, one = _blocks(channels, _ROWS)
    y, *statistics = _call(
        functools.partial(_forward, count, channels, epsilon),
        (-(-count // _ROWS),),
        [rows, whole, whole],
        [rows, one, one],
        [jax.ShapeDtypeStruct((count, channels), dtype), vector, vector],
        "norm_forward",
    )(x.reshape(count, channels), scale, bias)
    return y.reshape(x.shape), *(each.reshape(leading) for each in statistics)


def pull_back(
    x: Float[Array, "*b c"],
    mean: Float[Array, "*b"],
    inverse: Float[Array, "*b"],
    scale: Float[Array, "c"],
    cotangent: Float[Array, "*b c"],
    passed: Float[Array, "*b c"] | None,
) -> tuple[Float[Array, "*b c"], Float[Array, "p c"], Float[Array, "p c"]]:
    """Returns gradients of rows, with what is `passed`, and partial sums of scale's and bias's."""
    channels = x.shape[-1]
    count = x.size // channels
    long = _LONG
    while long > _ROWS and -(-count // long) < _PROGRAMS:
        long //= 2
    programs = -(-count // long)
    rows, whole, one = _blocks(channels, long)
    partial_sums = jax.ShapeDtypeStruct((programs, channels), jnp.float32)
    partial = pl.BlockSpec((None, _round_up(channels)), lambda i: (i, 0))
    flat = [each.reshape(count, channels) for each in (x, cotangent)]
    flat += [] if passed is None else [passed.reshape(count, channels)]
    x_grad, *sums = _call(
        functools.partial(_backward, count, channels, long),
        (programs,),
        [whole, one, one, *[rows] * len(flat)],
        [rows, partial, partial],
        [jax.ShapeDtypeStruct((count, channels), x.dtype), partial_sums, partial_sums],
        "norm_backward",
    )(scale, mean.reshape(count), inverse.reshape(count), *flat)
    return x_grad.reshape(x.shape), *sums


def sum_positions(
    function: Callable[..., tuple[Array, ...]],
    maps: Sequence[Float[Array, "b s c"]],
    numbers: Sequence[Float[Array, "b c"]],
    weights: Sequence[Float[Array, "c"]],
) -> tuple[Float[Array, "b c"], ...]:
    """Sums over positions what a function computes of maps, element by element, in float32.

    The function takes tiles of maps, numbers and weights, and returns the terms of each sum.
    """
    batch, count, channels = maps[0].shape
    rows, wide = _TILE
    columns = pl.cdiv(channels, wide)
    step = rows * _AHEAD
    chunks = min(pl.cdiv(2 * _PROGRAMS, batch * columns), pl.cdiv(count, step))
    long = pl.cdiv(pl.cdiv(count, chunks), step) * step
    chunks = pl.cdiv(count, long)
    arrays = *maps, *numbers, *weights
    terms = jax.eval_shape(function, *(jax.ShapeDtypeStruct((1, 1), x.dtype) for x in arrays))
    sums = _call(
        functools.partial(_sum_positions, function, len(maps), len(arrays), count, channels),
        (batch, columns, chunks),
        [
            *(pl.BlockSpec((None, long, wide), lambda i, j, k: (i, k, j)) for _ in maps),
            *(pl.BlockSpec((None, wide), lambda i, j, k: (i, j)) for _ in numbers),
            *(pl.BlockSpec((wide,), lambda i, j, k: (j,)) for _ in weights),
        ],
        [pl.BlockSpec((None, None, wide), lambda i, j, k: (i, k, j))] * len(terms),
        [jax.ShapeDtypeStruct((batch, chunks, channels), jnp.float32)] * len(terms),
        "norm_sums",
    )(*arrays)
    return tuple(each.sum(1) for each in sums)


def _round_up(channels: int) -> int:
    return 1 << (channels - 1).bit_length()


def _blocks(channels: int, long: int) -> tuple[pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
    """Returns the blocks of rows, of weights, and of numbers by row."""
    width = _round_up(channels)
    return (
        pl.BlockSpec((long, width), lambda i: (i, 0)),
        pl.BlockSpec((width,), lambda i: (0,)),
        pl.BlockSpec((long,), lambda i: (i,)),
    )


def _call(
    body: Any, grid: tuple[int, ...], inputs: list, outputs: list, made: list, name: str
) -> Any:
    call = pl.pallas_call(
        body,
        grid=grid,
        in_specs=inputs,
        out_specs=outputs,
        out_shape=made,
        compiler_params=triton.CompilerParams(
            num_warps=_ROWS * max(outputs[0].block_shape[-1] // _WIDE, 1), num_stages=1
        ),
        interpret=traced.traced_device().platform != "gpu",  # emulated elsewhere
        name=name,
    )

    def run(*arrays: Array) -> Any:
        with traced.describing():
            return call(*arrays)

    return run


def _real(first: Any, count: int, channels: int, width: int) -> tuple[Array, Array, Array]:
    """Returns which rows, which channels and which elements are real."""
    rows = first + jnp.arange(_ROWS) < count
    columns = jnp.arange(width) < channels
    return rows, columns, rows[:, None] & columns[None]


def _forward(count: int, channels: int, epsilon: float, x, scale, bias, y, means, inverses) -> None:
    first = pl.program_id(0) * _ROWS
    rows, columns, both = _real(first, count, channels, x.shape[1])
    wide = triton.load(x, mask=both, other=0.0).astype(jnp.float32)
    mean = wide.sum(1, keepdims=True) / channels
    away = jnp.where(both, wide - mean, 0.0)
    inverse = jax.lax.rsqrt((away * away).sum(1, keepdims=True) / channels + epsilon)
    weight, shift = (triton.load(each, mask=columns, other=0.0) for each in (scale, bias))
    result = away * (inverse * weight[None]) + shift[None]
    triton.store(y, result.astype(y.dtype), mask=both)
    triton.store(means, mean[:, 0], mask=rows)
    triton.store(inverses, inverse[:, 0], mask=rows)


def _backward(
    count: int, channels: int, long: int, scale, means, inverses, x, cotangent, *rest
) -> None:
    *passed, x_grad, scale_grad, bias_grad = rest
    start, width = pl.program_id(0) * long, x.shape[1]
    weight = triton.load(scale, mask=jnp.arange(width) < channels, other=0.0)

    def add(step: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        own = pl.ds(step * _ROWS, _ROWS)
        rows, _, both = _real(start + step * _ROWS, count, channels, width)
        mean, inverse = (
            triton.load(each.at[own], mask=rows, other=0.0)[:, None] for each in (means, inverses)
        )
        wide, pulled = (
            triton.load(each.at[own], mask=both, other=0.0).astype(jnp.float32)
            for each in (x, cotangent)
        )
        unit = jnp.where(both, (wide - mean) * inverse, 0.0)
        slope = pulled * weight[None]
        along = (slope * unit).sum(1, keepdims=True) / channels
        made = inverse * (slope - slope.sum(1, keepdims=True) / channels - unit * along)
        for each in passed:
            made += triton.load(each.at[own], mask=both, other=0.0).astype(jnp.float32)
        triton.store(x_grad.at[own], made.astype(x_grad.dtype), mask=both)
        return sums[0] + pulled * unit, sums[1] + pulled

    zeros = jnp.zeros((_ROWS, width), jnp.float32)
    sums = jax.lax.fori_loop(0, long // _ROWS, add, (zeros, zeros))
    for ref, each in zip((scale_grad, bias_grad), sums, strict=True):
        triton.store(ref, each.sum(0), mask=jnp.arange(width) < channels)


def _sum_positions(
    function: Callable[..., tuple[Array, ...]],
    maps: int,
    inputs: int,
    count: int,
    channels: int,
    *refs: Any,
) -> None:
    (long, width), rows = refs[0].shape, _TILE[0]
    columns = pl.program_id(1) * width + jnp.arange(width) < channels
    start = pl.program_id(2) * long
    rest = [triton.load(each, mask=columns, other=0.0)[None] for each in refs[maps:inputs]]

    def read(first: Any) -> tuple[Array, list[Array]]:
        own = pl.ds(first, rows)
        both = (start + first + jnp.arange(rows) < count)[:, None] & columns[None]
        return both, [triton.load(each.at[own], mask=both, other=0.0) for each in refs[:maps]]

    def add(step: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        for both, tiles in [read((step * _AHEAD + i) * rows) for i in range(_AHEAD)]:
            terms = function(*tiles, *rest)
            sums = tuple(a + jnp.where(both, b, 0.0) for a, b in zip(sums, terms, strict=True))
        return sums

    zeros = (jnp.zeros((rows, width), jnp.float32),) * len(refs[inputs:])
    sums = jax.lax.fori_loop(0, long // (rows * _AHEAD), add, zeros)
    for ref, each in zip(refs[inputs:], sums, strict=True):
        triton.store(ref, each.sum(0), mask=columns)
