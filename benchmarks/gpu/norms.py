"""Layer normalization at the start of a residual branch, forward and backward."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import ways
from benchmarks.gpu.calls import compile_call
from benchmarks.gpu.checks import Case, check
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.models.parts import narrow

EPSILON = 1e-5
ARRAYS = 6
"""Arrays that are read or written: the rows twice, two gradients; the result and a gradient."""


def normalize(x: jax.Array, *weights: jax.Array, kernel: bool) -> tuple[jax.Array, jax.Array]:
    """Returns rows, and the normalized rows, by a kernel or without."""
    settings = narrow.Settings(EPSILON, x.dtype, kernel, None)
    return narrow.fork(settings, x, *weights)


def _plain(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    deviation = jnp.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return x, (x - x.mean(-1, keepdims=True)) / deviation * scale + bias


def _cases(tiny: bool) -> Iterator[Case]:
    for count, channels in ((24, 96),) if tiny else ((1531, 768), (4100, 1024), (333, 1280)):
        draw = functools.partial(jax.random.normal, shape=(count, channels))
        cotangents = [draw(jax.random.key(n)) for n in range(2)]
        arrays = (
            3 * draw(jax.random.key(2)) + 1,
            draw(jax.random.key(3))[0],
            draw(jax.random.key(4))[0],
        )

        def weigh(made: tuple, cotangents: list = cotangents) -> Any:
            made = [x.astype(jnp.float32) for x in made]
            return sum((x * y).sum() for x, y in zip(made, cotangents, strict=True)), made[1]

        def ours(*x: jax.Array, weigh=weigh, kernel: bool) -> Any:
            return weigh(normalize(*x, kernel=kernel))

        def plain(*x: jax.Array, weigh=weigh) -> Any:
            return weigh(_plain(*x))

        computed = {
            name: functools.partial(ours, kernel=kernel) for name, kernel in ways.NORMS.items()
        }
        yield Case(f"norm, {count} x {channels}", arrays, plain, computed, rounded=1)


def check_norms(session: Session) -> list[Row]:
    """Checks both ways against the formula."""
    return check(session, _cases)


def measure_norms(session: Session) -> list[Row]:
    """Times both ways on the rows of a ViT-B/32 with 2048 images, in bfloat16."""
    shape = (64, 96) if session.tiny else (2048 * 50, 768)
    arrays = [jax.random.normal(jax.random.key(n), shape, jnp.bfloat16) for n in range(3)]
    weights = [jax.random.normal(jax.random.key(n), shape[1:]) for n in range(3, 5)]

    def run(x: jax.Array, scale: jax.Array, bias: jax.Array, *cotangents: jax.Array, kernel: bool):
        made, pull = jax.vjp(functools.partial(normalize, kernel=kernel), x, scale, bias)
        return made[1], pull(cotangents)

    makers = {
        name: functools.partial(
            compile_call, functools.partial(run, kernel=kernel), arrays[0], *weights, *arrays[1:]
        )
        for name, kernel in ways.NORMS.items()
    }
    bound = session.bound(0, ARRAYS * arrays[0].nbytes)
    return measure_turns(session, makers, bound, ways.WITHOUT_KERNEL)
