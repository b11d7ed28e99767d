"""The contrastive loss, forward and backward: every way, the plain formula, and other libraries."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contrastive_loss import SCALE, plain_loss
from benchmarks.gpu import theirs, ways
from benchmarks.gpu.calls import Call, compile_call, extra_bytes
from benchmarks.gpu.checks import draw_unit
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss

WIDTH = 512
PRODUCTS = 3
"""Products of the batch that the value and the gradients need at the least."""
ELEMENT = {"float32": 4, "bfloat16": 2}
LARGEST_BATCHES = (2**19, 2**20, 2**21)
LARGEST_SECONDS = 30.0
"""A larger batch is not tried if this much would not do."""


def make_loss(**way: Any) -> Callable[..., Any]:
    """Returns the value and the gradients of our loss, computed in some way."""

    def loss(zimg: jax.Array, ztxt: jax.Array, scale: jax.Array) -> jax.Array:
        return sum(blockwise_contrastive_loss(zimg, ztxt, scale, **way)) / 2

    return jax.value_and_grad(loss, argnums=(0, 1, 2))


def measure_loss(session: Session, batch: int, dtype: str) -> list[Row]:
    """Times all ways at one batch size and type, in turns."""
    batch, width = (64, 16) if session.tiny else (batch, WIDTH)
    arrays = (
        draw_unit(0, batch, width, dtype),
        draw_unit(1, batch, width, dtype),
        jnp.float32(SCALE),
    )
    makers: dict[str, Callable[[], Call]] = {
        name: functools.partial(compile_call, make_loss(**way), *arrays)
        for name, way in ways.CONTRASTIVE.items()
    }
    plain = jax.value_and_grad(plain_loss, argnums=(0, 1, 2))
    makers["plain jnp"] = lambda: compile_call(plain, *arrays)
    makers |= theirs.make_losses(arrays, dtype)
    products, moved = PRODUCTS * 2 * batch**2 * width, 4 * batch * width * ELEMENT[dtype]
    bound = session.bound(products, moved, dtype)
    return measure_turns(session, makers, bound, theirs.OPEN_CLIP)


def find_largest(session: Session) -> list[Row]:
    """Finds the largest bfloat16 batch that fits by plan and in time, and runs it once."""
    batches, width = ((64, 128), 16) if session.tiny else (LARGEST_BATCHES, WIDTH)
    memory = jax.local_devices()[0].memory_stats() or {}
    limit = memory.get("bytes_limit", 2**60) - memory.get("bytes_in_use", 0)
    loss = make_loss(**ways.CONTRASTIVE[ways.LARGEST])
    rows: list[Row] = []
    best = None
    for batch in batches:
        bound = session.bound(4 * 2 * batch**2 * width, 0)
        if bound is not None and 2 * bound > LARGEST_SECONDS:
            break
        shape = jax.ShapeDtypeStruct((batch, width), jnp.bfloat16)
        compiled = jax.jit(loss).lower(shape, shape, jnp.float32(SCALE)).compile()
        needed = extra_bytes(compiled) + 2 * batch * width * 2
        row = {"what": f"{batch:,} pairs, by plan", "mib": needed / 2**20, "met": needed <= limit}
        rows.append(row)
        if needed > limit:
            break
        best = batch, compiled, bound
    if best is not None:
        rows.append(_run_once(*best, width))
    return rows


def _run_once(batch: int, compiled: jax.stages.Compiled, bound: float | None, width: int) -> Row:
    pair = (draw_unit(n, batch, width, "bfloat16") for n in range(2))
    arrays = *pair, jnp.float32(SCALE)
    jax.block_until_ready(arrays)
    start = time.perf_counter()
    value, _ = jax.block_until_ready(compiled(*arrays))
    seconds = time.perf_counter() - start
    row: Row = {"what": f"{batch:,} pairs, run", "ms": 1e3 * seconds, "value": float(value)}
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        row["mib"] = stats["peak_bytes_in_use"] / 2**20
    return row if bound is None else row | {"bound_ms": 1e3 * bound, "share": bound / seconds}
