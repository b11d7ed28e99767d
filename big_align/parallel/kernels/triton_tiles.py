"""What kernels for attention written for Triton share: tiles, and how a kernel is called.

All values in such a kernel have sizes that are powers of 2. Blocks of memory have any size, and may
be larger than an array as long as what is outside is neither read nor written.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool

from big_align.parallel.devices import traced
from big_align.parallel.kernels.stated_flops import state_flops

SMALLEST = 16
"""The least edge of a product."""


def round_up(size: int) -> int:
    """Returns the edge of the tile for so many tokens or channels: a power of 2."""
    return max(SMALLEST, 1 << (size - 1).bit_length())


def binary_scale(channels: int) -> float:
    """Returns what logits are multiplied by, for powers of 2."""
    return channels**-0.5 / math.log(2)


def run_kernel(
    body: Any,
    name: str,
    grid: tuple[int, ...],
    arrays: tuple[Any, ...],
    made: list[jax.ShapeDtypeStruct],
    blocks: tuple[Any, list[pl.BlockSpec]],
    shape: tuple[int, int],
    flops: int,
    interpret: bool,
) -> tuple[Array, ...]:
    """Runs a kernel for attention on one device; returns what it makes.

    Its body takes a tuple of references to the arrays, with None for what there is not, and one of
    those to what is made. `blocks` is what a program has of either. The shape is warps of a
    program, and stages in which loops load ahead; `flops` are what all programs multiply and add.
    """

    def program(*refs: Any) -> None:
        body(refs[: len(arrays)], refs[len(arrays) :])

    call = pl.pallas_call(
        program,
        grid=grid,
        in_specs=blocks[0],
        out_specs=blocks[1],
        out_shape=made,
        compiler_params=triton.CompilerParams(num_warps=shape[0], num_stages=shape[1]),
        interpret=interpret,
        name=name,
    )
    with traced.describing(), state_flops(flops):
        return call(*arrays)


def load_tile(ref: Any, rows: int, channels: int) -> Array:
    """Loads a tile, of which so many rows and channels are real; the others are zero."""
    real = _find_real(ref.shape, (rows, channels))
    return triton.load(ref, mask=real, other=None if real is None else 0.0)


def store_tile(ref: Any, rows: int, channels: int, x: Array) -> None:
    """Stores the real rows and channels of a tile, in the type of the array."""
    triton.store(ref, x.astype(ref.dtype), mask=_find_real(ref.shape, (rows, channels)))


def _find_real(shape: tuple[int, int], sizes: tuple[int, int]) -> Bool[Array, "r c"] | None:
    """Returns which elements of a tile are real, None if all are."""
    real = None
    for axis in (0, 1):
        if sizes[axis] < shape[axis]:
            inside = jax.lax.broadcasted_iota(jnp.int32, shape, axis) < sizes[axis]
            real = inside if real is None else real & inside
    return real
