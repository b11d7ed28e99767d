"""Attention by kernels that have whole sequences at once: their derivative and their placement.

Such a kernel computes the weights of a softmax in one piece, so that its backward pass needs no
more than the arguments. There is one for TPUs and one for NVIDIA GPUs.
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

Run = Callable[[Any, tuple[Array, ...], list[jax.ShapeDtypeStruct], Array | None], tuple]
"""Runs a kernel on one device: from settings; queries, keys, values and, for the backward pass, the
gradient of the output; the shapes and types of what it computes; and the mask as float32."""


def attend_whole(
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


def _run(how: tuple, arrays: tuple, like: tuple, mask: Array | None) -> tuple:
    """Runs a kernel on every device; its results are like some arrays."""
    run, settings, mesh = how

    def on_device(_: tuple, given: tuple) -> tuple:
        *arrays, mask = given
        made = [jax.ShapeDtypeStruct((len(arrays[0]), *x.shape[1:]), x.dtype) for x in like]
        return run(settings, tuple(arrays), made, mask)

    given = *arrays, mask
    return on_device((), given) if mesh is None else sharding.map_rows(on_device, (), given, mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: tuple, query: Array, key: Array, value: Array, mask: Array | None) -> Array:
    return _run(how, (query, key, value), (query,), mask)[0]


def _attend_forward(how: tuple, query: Array, key: Array, value: Array, mask: Array | None):
    out = keep_result(_attend(how, query, key, value, mask))
    return out, (query, key, value, mask)


def _attend_backward(how: tuple, residuals: tuple, cotangent: Array) -> tuple:
    *given, mask = residuals
    grads = _run(how, (*given, cotangent), tuple(given), mask)
    return *grads, None if mask is None else jnp.zeros_like(mask)


_attend.defvjp(_attend_forward, _attend_backward)
