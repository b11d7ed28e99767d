"""Normalizations, forward and backward.

They are that of layers at the start of a residual branch, and that of batches with what follows it
in EfficientNet: swish, and the gate that channels get from their means.
"""

import functools
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.gpu import ways
from benchmarks.gpu.calls import compile_call
from benchmarks.gpu.checks import Case, check
from benchmarks.gpu.session import Session, measure_turns
from benchmarks.gpu.tables import Row
from big_align.models.parts import batch_norm, narrow

EPSILON = 1e-5
ARRAYS = 6
"""Arrays that are read or written: the rows twice, two gradients; the result and a gradient."""
BATCH_ARRAYS = 9
"""The activations for their statistics, their means and the result, which is written; they and its
gradient for sums, and again for the gradient of activations, which is written."""


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


def normalize_batch(
    x: jax.Array, scale: jax.Array, bias: jax.Array, *weights: jax.Array, kernel: bool
) -> jax.Array:
    """Returns normalized and gated activations, by the kernel or by the plain formula."""
    function = batch_norm.normalize if kernel else batch_norm.normalize_plainly
    settings = batch_norm.BatchSettings(EPSILON, 16, False, nn.swish, _gate, kernel, None)
    return function(settings, x, scale, bias, None, weights)[0]


def _gate(pooled: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
    dtype = pooled.dtype
    return nn.sigmoid(nn.swish(pooled @ down.astype(dtype)) @ up.astype(dtype))


def _make_batch(shape: tuple[int, ...]) -> list[jax.Array]:
    """Draws activations, the scales and biases of their channels, and the weights of the gate."""
    channels = shape[-1]
    shapes = shape, (channels,), (channels,), (channels, channels // 24), (channels // 24, channels)
    drawn = [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes)]
    return [2 * drawn[0] + 1, 1 + drawn[1] / 4, drawn[2], *(x / channels**0.5 for x in drawn[3:])]


def _batch_cases(tiny: bool) -> Iterator[Case]:
    for shape in ((16, 5, 3, 48),) if tiny else ((32, 19, 19, 2064), (64, 73, 73, 144)):
        weights = jax.random.normal(jax.random.key(5), shape)

        def weigh(*arrays: jax.Array, weights: jax.Array = weights, kernel: bool) -> Any:
            made = normalize_batch(*arrays, kernel=kernel).astype(jnp.float32)
            return (made * weights).sum() / weights.size**0.5, made

        computed = {
            name: functools.partial(weigh, kernel=kernel) for name, kernel in ways.NORMS.items()
        }
        plain = functools.partial(weigh, kernel=False)
        sizes = " x ".join(map(str, shape))
        yield Case(f"batch norm, {sizes}", tuple(_make_batch(shape)), plain, computed, rounded=1)


def check_norms(session: Session) -> list[Row]:
    """Checks both ways against the formulas."""
    return check(session, _cases) + check(session, _batch_cases)


def measure_batch_norms(session: Session) -> list[Row]:
    """Times both ways on 64 maps of EfficientNet-L2's third stage, in bfloat16."""
    x, *weights = _make_batch((16, 5, 5, 48) if session.tiny else (64, 73, 73, 624))
    arrays = x.astype(jnp.bfloat16), *weights, x.astype(jnp.bfloat16)

    def run(*arrays: jax.Array, kernel: bool) -> Any:
        *inputs, cotangent = arrays
        made, pull = jax.vjp(functools.partial(normalize_batch, kernel=kernel), *inputs)
        return made, pull(cotangent)

    makers = {
        name: functools.partial(compile_call, functools.partial(run, kernel=kernel), *arrays)
        for name, kernel in ways.NORMS.items()
    }
    bound = session.bound(0, BATCH_ARRAYS * arrays[0].nbytes)
    return measure_turns(session, makers, bound, ways.WITHOUT_KERNEL)


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
