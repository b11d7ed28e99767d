"""Attention on NVIDIA GPUs for sequences that do not fit into one tile (Dao, 2023).

A program has a tile of queries, and goes through the keys in steps with a running softmax. The
backward pass has two kernels, since programs cannot add to each other's results: one has a tile of
queries, and the other a tile of keys. The latter computes logits transposed, so that nothing in
registers has to be.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from big_align.parallel.kernels.attention_kernels import KernelSettings, Parts
from big_align.parallel.kernels.triton_long_passes import (
    AttentionWork,
    TokenTiles,
    run_backward_of_keys,
    run_backward_of_queries,
    run_forward,
)
from big_align.parallel.kernels.triton_tiles import round_up, run_kernel

MOST_CHANNELS = 128


class _Kernel(NamedTuple):
    """A kernel, and the shape of its programs."""

    body: Callable[..., None]
    queries: int  # tokens of a tile
    keys: int  # likewise
    products: int  # that it computes for each pair of tiles
    has_keys: bool = False  # whether a program has a tile of keys, and not of queries
    warps: int = 4  # for 64 channels; twice as many for 128
    stages: int = 2  # in which its loop loads ahead


_KERNELS = {
    "forward": _Kernel(run_forward, 64, 64, 2),
    "queries": _Kernel(run_backward_of_queries, 64, 64, 3),
    "keys": _Kernel(run_backward_of_keys, 32, 64, 4, has_keys=True),
}
"""By ptxas, they need 106, 123 and 126 registers a thread for 257 tokens of 64 channels, and spill
none: a multiprocessor of an H200 has four programs. With 64 queries, the last would need 175."""


def run(settings: KernelSettings, arrays: tuple, parts: Parts) -> tuple:
    """Runs a pass on one device.

    It returns the output, and by head and query the logarithm to base 2 of the sum of the softmax.
    For the backward pass the arrays also have these, and the gradient of the output; it returns the
    gradients of queries, keys and values.
    """
    query, key, value, *rest = arrays
    batch, queries, heads, _ = query.shape
    by_query = jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)]
    call = functools.partial(_call, settings, parts.mask)
    if not rest:
        return call("forward", (query, key, value), [like[0], by_query])
    out, sums, cotangent = rest
    given = query, key, value, cotangent, sums
    query_grad, along = call("queries", (*given, out), [like[0], by_query])
    return query_grad, *call("keys", (*given, along), like[1:])


def _call(
    settings: KernelSettings, mask: Array | None, name: str, arrays: tuple, made: list
) -> tuple[Array, ...]:
    """Calls one of `_KERNELS`."""
    (batch, queries, heads, channels), keys = arrays[0].shape, arrays[1].shape[1]
    kernel = _KERNELS[name]
    cut = TokenTiles(queries, kernel.queries), TokenTiles(keys, kernel.keys)
    work, width = AttentionWork(*cut, channels, settings.causal), round_up(channels)

    def block(x: Any) -> pl.BlockSpec:
        if x.ndim == 3:
            return pl.BlockSpec((None, None, cut[0].padded), lambda i, j, k: (k, j, 0))
        tokens = max(part.padded for part in cut if part.tokens == x.shape[1])
        return pl.BlockSpec((None, tokens, None, width), lambda i, j, k: (k, 0, j, 0))

    inputs = [block(x) for x in arrays]
    if mask is not None:
        inputs.append(pl.BlockSpec((None, cut[1].padded), lambda i, j, k: (k, 0)))
        arrays = *arrays, mask
    own, other = cut[kernel.has_keys], cut[not kernel.has_keys]
    pairs = own.whole * own.tile * other.steps(own.tile).padded
    if own.rest:
        pairs += own.rest.size * other.steps(own.rest.size).padded
    return run_kernel(
        functools.partial(kernel.body, work),
        f"attention_{name}",
        (own.count, heads, batch),
        arrays,
        made,
        (tuple(inputs), [block(x) for x in made]),
        (kernel.warps * max(1, width // 64), kernel.stages),
        2 * kernel.products * batch * heads * pairs * width,
        settings.interpret,
    )
