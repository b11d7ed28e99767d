"""Sharded weights: gathered where a layer needs them, with their gradients scattered.

Parameters, gradients and moments are stored in pieces over the `fsdp` axis (ZeRO, Rajbhandari
et al. 2020; in this form, FSDP). What moves, when and in which type is written out here with
explicit collectives, so that it does not depend on how a compiler handles a placement.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from big_align.parallel.devices import traced
from big_align.parallel.logical_axes import partition
from big_align.parallel.meshes import BATCH_AXES, batch_sharding, replicated


class _Weights(NamedTuple):
    """The placement of weights, and the types of their layer's computation and gradient sum."""

    mesh: Mesh
    specs: tuple  # placement of each
    compute_dtype: Any
    sum_dtype: str


def apply_weight(
    function: Callable[[Array, Array], Array],
    x: Array | np.ndarray,
    weight: Array | np.ndarray,
    names: tuple[str | None, ...],
    dtype: Any,
) -> Array:
    """Computes `function(x, weight)` with a sharded weight; see `apply_weights`."""
    return apply_weights(function, x, (weight,), names, dtype)


def apply_weights(
    function: Callable[..., Any],
    x: Array | np.ndarray,
    weights: tuple[Array | np.ndarray, ...],
    names: tuple[str | None, ...],
    dtype: Any,
) -> Any:
    """Computes `function(x, *weights)` with sharded weights.

    A weight is cast to the type of the computation and only then gathered, each time that it is
    needed: in the forward and in the backward pass. Each device computes its gradient from its own
    rows, casts it to the type in which gradients are summed, and scatters it over `fsdp` in
    summing. So besides its pieces, a device only holds the weights of the layers in progress, and a
    recomputed block (`rematerialization`) gathers its weights again.

    The function returns arrays of rows, each computed from one row of `x`; `names` are the logical
    names of the axes of each weight.
    """
    place = traced.weight_place()
    if place is None or place.mesh.size == 1:
        return _apply_whole(function, x, weights, dtype)
    mesh, sum_dtype = place
    specs = tuple(partition(names, weight.shape, mesh) for weight in weights)
    if not any(map(any, specs)) and dtype == sum_dtype:
        return _apply_whole(function, x, weights, dtype)
    if len(x) % mesh.size:  # not rows of the batch: every device has all of them
        whole = tuple(jnp.asarray(weight, dtype) for weight in weights)
        return function(x, *jax.lax.with_sharding_constraint(whole, replicated(mesh)))
    return _apply(function, _Weights(mesh, specs, dtype, sum_dtype), x, weights)


def _apply_whole(function: Callable, x: Any, weights: tuple, dtype: Any) -> Any:
    """Computes with weights that every device has whole; rows that are looked up are cast last."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        return function(x, *map(jnp.asarray, weights)).astype(dtype)
    return function(x, *(jnp.asarray(weight, dtype) for weight in weights))


def _apply_gathered(function: Callable, how: _Weights, x: Array, weights: tuple) -> Any:
    collect = jax.shard_map(
        lambda pieces: _collect(pieces, how),
        mesh=how.mesh,
        in_specs=(how.specs,),
        out_specs=replicated(how.mesh).spec,
        check_vma=False,
    )
    return function(x, *collect(weights))


_apply = jax.custom_vjp(_apply_gathered, nondiff_argnums=(0, 1))


def _apply_forward(function: Callable, how: _Weights, x: Array, weights: tuple) -> tuple:
    # Not `_apply`, in which a policy of what to recompute would not see the product.
    return _apply_gathered(function, how, x, weights), (x, weights)


def _apply_backward(function: Callable, how: _Weights, residuals: tuple, cotangent: Any) -> tuple:
    sums = [jax.ShapeDtypeStruct(weight.shape, how.sum_dtype) for weight in residuals[1]]

    def look_up_back(x: Array, cotangent: Array) -> tuple:
        """Returns the gradient of a lookup, summed in the wide type, without using the table."""
        pull = jax.linear_transpose(lambda table: function(x, table), *sums)
        return None, *pull(cotangent.astype(how.sum_dtype))

    def on_device(x: Array, pieces: tuple, cotangent: Any) -> tuple:
        if jnp.issubdtype(x.dtype, jnp.integer):
            x_grad, *grads = look_up_back(x, cotangent)
        else:
            x_grad, *grads = jax.vjp(function, x, *_collect(pieces, how))[1](cotangent)
            if how.mesh.devices.flat[0].platform == "gpu":
                # XLA's scheduler would put the gradients of weights off, keep what they read, and
                # compute that again when memory is short.
                x_grad, *grads = jax.lax.optimization_barrier((x_grad, *grads))
        scattered = map(_sum_scattered, grads, how.specs, [how] * len(grads))
        each = zip(scattered, pieces, strict=True)
        return x_grad, tuple(grad.astype(piece.dtype) for grad, piece in each)

    rows = batch_sharding(how.mesh).spec
    pull_back = jax.shard_map(
        on_device,
        mesh=how.mesh,
        in_specs=(rows, how.specs, rows),
        out_specs=(rows, how.specs),
        check_vma=False,
    )
    return pull_back(*residuals, cotangent)


_apply.defvjp(_apply_forward, _apply_backward)


def _collect(pieces: tuple, how: _Weights) -> tuple:
    """Gathers whole weights from their pieces, cast first, which halves the traffic."""

    def collect(piece: Array, spec: Any) -> Array:
        whole = piece.astype(how.compute_dtype)
        for axis, name in enumerate(spec):
            if name is not None:
                whole = jax.lax.all_gather(whole, name, axis=axis, tiled=True)
        return whole

    return tuple(map(collect, pieces, how.specs))


def _sum_scattered(grad: Array, spec: Any, how: _Weights) -> Array:
    """Sums a gradient over all devices, each of which keeps its piece."""
    grad, left = grad.astype(how.sum_dtype), list(BATCH_AXES)
    for axis, name in enumerate(spec):
        if name is not None:
            grad = jax.lax.psum_scatter(grad, name, scatter_dimension=axis, tiled=True)
            left.remove(name)
    return jax.lax.psum(grad, left)
