"""Sharded weights: gathered where a layer needs them, with their gradients scattered.

Parameters, gradients and moments are stored in pieces over the `fsdp` axis (ZeRO, Rajbhandari
et al. 2020; in this form, FSDP). What moves, when and in which type is written out here with
explicit collectives, so that it does not depend on how a compiler handles a placement.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from big_align import sharding
from big_align.devices import traced


class _Weight(NamedTuple):
    """The placement of a weight, and the types of its layer's computation and gradient sum."""

    mesh: Mesh
    spec: Any  # placement of the weight
    compute_dtype: Any
    sum_dtype: str


def apply_weight(
    function: Callable[[Array, Array], Array],
    x: Array | np.ndarray,
    weight: Array | np.ndarray,
    names: tuple[str | None, ...],
    dtype: Any,
) -> Array:
    """Computes `function(x, weight)` with a sharded weight.

    The weight is cast to the type of the computation and only then gathered, each time that it is
    needed: in the forward and in the backward pass. Each device computes its gradient from its own
    rows, casts it to the type in which gradients are summed, and scatters it over `fsdp` in
    summing. So besides its pieces, a device only holds the weights of the layers in progress, and a
    recomputed block (`rematerialization`) gathers its weights again.

    Args:
      function: takes rows and the whole weight; returns rows, each computed from one row of `x`.
      x: an array with rows leading, floating-point or integer.
      weight: a parameter.
      names: the logical names of its axes.
      dtype: type of the computation.
    """
    place = traced.weight_place()
    if place is None or place.mesh.size == 1:
        return _apply_whole(function, x, weight, dtype)
    mesh, sum_dtype = place
    spec = sharding.partition(names, weight.shape, mesh)
    if not any(spec) and dtype == sum_dtype:
        return _apply_whole(function, x, weight, dtype)
    if len(x) % mesh.size:  # not rows of the batch: every device has all of them
        whole = jnp.asarray(weight, dtype)
        return function(x, jax.lax.with_sharding_constraint(whole, sharding.replicated(mesh)))
    return _apply(function, _Weight(mesh, spec, dtype, sum_dtype), x, weight)


def _apply_whole(function: Callable, x: Any, weight: Any, dtype: Any) -> Array:
    """Computes with a weight that every device has whole; rows that are looked up are cast last."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return function(x, jnp.asarray(weight)).astype(dtype)
    return function(x, jnp.asarray(weight, dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(function: Callable, how: _Weight, x: Array, weight: Array) -> Array:
    collect = jax.shard_map(
        lambda piece: _collect(piece, how),
        mesh=how.mesh,
        in_specs=(how.spec,),
        out_specs=sharding.replicated(how.mesh).spec,
        check_vma=False,
    )
    return function(x, collect(weight))


def _apply_forward(function: Callable, how: _Weight, x: Array, weight: Array) -> tuple:
    return _apply(function, how, x, weight), (x, weight)


def _apply_backward(function: Callable, how: _Weight, residuals: tuple, cotangent: Array) -> tuple:
    sums = jax.ShapeDtypeStruct(residuals[1].shape, how.sum_dtype)

    def look_up_back(x: Array, cotangent: Array) -> tuple:
        """Returns the gradient of a lookup, summed in the wide type, without using the table."""
        pull = jax.linear_transpose(lambda table: function(x, table), sums)
        return None, *pull(cotangent.astype(how.sum_dtype))

    def on_device(x: Array, piece: Array, cotangent: Array) -> tuple:
        if jnp.issubdtype(x.dtype, jnp.integer):
            x_grad, grad = look_up_back(x, cotangent)
        else:
            x_grad, grad = jax.vjp(function, x, _collect(piece, how))[1](cotangent)
        return x_grad, _sum_scattered(grad, how).astype(piece.dtype)

    rows = sharding.batch_sharding(how.mesh).spec
    pull_back = jax.shard_map(
        on_device,
        mesh=how.mesh,
        in_specs=(rows, how.spec, rows),
        out_specs=(rows, how.spec),
        check_vma=False,
    )
    return pull_back(*residuals, cotangent)


_apply.defvjp(_apply_forward, _apply_backward)


def _collect(piece: Array, how: _Weight) -> Array:
    """Gathers a whole weight from its pieces, cast first, which halves the traffic."""
    whole = piece.astype(how.compute_dtype)
    for axis, name in enumerate(how.spec):
        if name is not None:
            whole = jax.lax.all_gather(whole, name, axis=axis, tiled=True)
    return whole


def _sum_scattered(grad: Array, how: _Weight) -> Array:
    """Sums a gradient over all devices, each of which keeps its piece."""
    grad, left = grad.astype(how.sum_dtype), list(sharding.BATCH_AXES)
    for axis, name in enumerate(how.spec):
        if name is not None:
            grad = jax.lax.psum_scatter(grad, name, scatter_dimension=axis, tiled=True)
            left.remove(name)
    return jax.lax.psum(grad, left)
