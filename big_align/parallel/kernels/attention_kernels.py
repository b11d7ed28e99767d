"""Attention by kernels of our own: what they are given, their derivative and their placement.

There is one for TPUs, and for NVIDIA GPUs there are two. Those that have whole sequences compute
the weights of a softmax in one piece, so that their backward pass needs no more than the arguments.
Those that go through the keys in steps keep the output and the sums of the softmax.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from big_align.parallel.devices.rematerialization import keep_result
from big_align.parallel.kernels.attention_dropout import Dropout
from big_align.parallel.shards import map_rows


class Terms(NamedTuple):
    """What there is besides queries, keys and values, as `models.parts.attention.attend` has it."""

    mask: Bool[Array, "b k"] | None = None  # where a key may be attended to
    bias: Float[Array, "n heads q k"] | None = None  # example i has the bias i % n
    dropout: Dropout | None = None
    causal: bool = False  # whether a query attends to no key after its own position


class Parts(NamedTuple):
    """What a kernel is given besides queries, keys and values; None for what there is not."""

    mask: Float[Array, "b k"] | None  # 1 where a key may be attended to, else 0
    seeds: Int[Array, "b"] | None  # of dropout, one an example
    bias: Float[Array, "n heads q k"] | None  # float32


class KernelSettings(NamedTuple):
    """What is asked of a kernel."""

    channels: int  # of a head
    causal: bool  # whether a query attends to no key after its own position
    rate: float  # of dropout
    interpret: bool  # whether the kernel is emulated, on any device


Run = Callable[[KernelSettings, tuple[Array, ...], Parts], tuple[Array, ...]]
"""Runs a kernel on one device: from settings, arrays, and parts. In the forward pass, the arrays
are queries, keys and values, and it returns the output. If it returns more, the backward pass is
given all of that after these arrays. The last array that the backward pass is given is the gradient
of the output. It returns the gradients of queries, keys and values and, if there is a bias, parts
of its gradient [parts n heads q k], to be added up."""


def attend_by_kernel(
    run: Run,
    arrays: tuple[Array, Array, Array],
    terms: Terms,
    channels: int,
    mesh: Mesh | None,
    interpret: bool,
) -> Array:
    """Computes attention by a kernel, on each device for its part of the batch.

    Queries, keys and values are in the layout of the kernel, and so are the weighted means of the
    values. Without a mesh, one device has all of the batch.
    """
    rate = 0.0 if terms.dropout is None else terms.dropout.rate
    settings = KernelSettings(channels, terms.causal, rate, interpret)
    mask = None if terms.mask is None else terms.mask.astype(jnp.float32)
    seeds = None if terms.dropout is None else terms.dropout.draw_seeds(len(arrays[0]))
    bias = None if terms.bias is None else terms.bias.astype(jnp.float32)
    return _attend((run, settings, mesh), arrays, Parts(mask, seeds, bias))


def _run(how: tuple, arrays: tuple, parts: Parts) -> tuple:
    """Runs a kernel on every device."""
    run, settings, mesh = how

    def on_device(bias: Array | None, given: tuple) -> tuple:
        arrays, mask, seeds = given
        return tuple(run(settings, arrays, Parts(mask, seeds, bias)))

    *rows, bias = parts
    given = arrays, *rows
    if mesh is None:
        return on_device(bias, given)
    return map_rows(on_device, bias, given, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: tuple, arrays: tuple, parts: Parts) -> Array:
    return _run(how, arrays, parts)[0]


def _attend_forward(how: tuple, arrays: tuple, parts: Parts) -> tuple[Array, tuple]:
    made = tuple(map(keep_result, _run(how, arrays, parts)))
    return made[0], (arrays, made if len(made) > 1 else (), parts)


def _attend_backward(how: tuple, residuals: tuple, cotangent: Array) -> tuple:
    arrays, made, parts = residuals
    grads = _run(how, (*arrays, *made, cotangent), parts)
    bias = None if parts.bias is None else grads[3].sum(0)
    return grads[:3], Parts(None, None, bias)  # None stands for zeros, too


_attend.defvjp(_attend_forward, _attend_backward)
