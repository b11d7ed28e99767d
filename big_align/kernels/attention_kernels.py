"""Attention by kernels of our own: their derivative and their placement.

There is one for TPUs, and for NVIDIA GPUs there are two. Those that have whole sequences compute
the weights of a softmax in one piece, so that their backward pass needs no more than the arguments.
Those that go through the keys in steps keep the output and the sums of the softmax.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from big_align import sharding
from big_align.devices.rematerialization import keep_result

Run = Callable[[Any, tuple[Array, ...], Array | None], tuple[Array, ...]]
"""Runs a kernel on one device: from settings, arrays, and the mask as float32. In the forward pass,
the arrays are queries, keys and values, and it returns the output. If it returns more, the backward
pass is given all of that after these arrays. The last array that the backward pass is given is the
gradient of the output, and it returns the gradients of queries, keys and values."""


def attend_by_kernel(
    run: Run,
    settings: Any,
    mesh: Mesh | None,
    query: Array,
    key: Array,
    value: Array,
    mask: Bool[Array, "b k"] | None,
) -> Array:
    """Computes attention by a kernel, on each device for its part of the batch.

    Args:
      run: runs the kernel.
      settings: what it is given, hashable.
      mesh: devices that the batch is split over; None for one that has all of it.
      query: queries, in the layout of the kernel.
      key: keys.
      value: values.
      mask: True where a key may be attended to; None if all may.

    Returns:
      The weighted means of the values, in the layout of the queries.
    """
    numbers = None if mask is None else mask.astype(jnp.float32)
    return _attend((run, settings, mesh), query, key, value, numbers)


def _run(how: tuple, arrays: tuple, mask: Array | None) -> tuple:
    """Runs a kernel on every device."""
    run, settings, mesh = how

    def on_device(_: tuple, given: tuple) -> tuple:
        *arrays, mask = given
        return tuple(run(settings, tuple(arrays), mask))

    given = *arrays, mask
    return on_device((), given) if mesh is None else sharding.map_rows(on_device, (), given, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: tuple, query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return _run(how, (query, key, value), mask)[0]


def _attend_forward(how: tuple, query: Array, key: Array, value: Array, mask: Array | None):
    given = query, key, value
    made = tuple(map(keep_result, _run(how, given, mask)))
    return made[0], (given, made if len(made) > 1 else (), mask)


def _attend_backward(how: tuple, residuals: tuple, cotangent: Array) -> tuple:
    given, made, mask = residuals
    grads = _run(how, (*given, *made, cotangent), mask)
    return *grads, None if mask is None else jnp.zeros_like(mask)


_attend.defvjp(_attend_forward, _attend_backward)
