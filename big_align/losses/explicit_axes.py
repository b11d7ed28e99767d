"""Losses of arrays whose sharding is part of their type.

On a mesh with `AxisType.Explicit` axes, the default of `jax.make_mesh`, every operation has to say
how its result is sharded, and a comparison of all rows with all columns has no good answer. A loss
returns scalars, which are not sharded, so the inside may be left to the compiler.

Inside `jax.shard_map`, the type of an array names the axes along which it varies. What a loop
carries must vary along the same axes before and after, and so must an argument and its gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

Loss = TypeVar("Loss", bound=Callable[..., Any])
AnyArray = jax.Array | np.ndarray


def on_any_mesh(loss: Loss) -> Loss:
    """Compiles a function that returns scalars, on meshes with Explicit axes as well.

    With arrays on such a mesh, or under such a mesh (`jax.set_mesh`), it is compiled as on a mesh
    with Auto axes. Within a function that is compiled itself, it becomes part of that.
    """

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        dynamic = tuple(isinstance(leaf, AnyArray) for leaf in leaves)
        arrays = [leaf for leaf, is_array in zip(leaves, dynamic, strict=True) if is_array]
        rest = tuple(_ARRAY if is_array else x for x, is_array in zip(leaves, dynamic, strict=True))
        mesh = _find_explicit(arrays)
        if mesh is None:
            return _call(loss, tree, rest, arrays)
        return _call_on_auto(loss, mesh, tree, rest, [_join_mesh(x) for x in arrays])

    return cast(Loss, call)


def vary_like(tree: Any, like: Any) -> Any:
    """Lets arrays vary along every axis of `jax.shard_map` along which others vary.

    The gradient of an array is then the sum over the axes that it did not vary along. Values stay
    the same; outside of `jax.shard_map`, so do the arrays.
    """
    axes = frozenset().union(*map(_varying, jax.tree.leaves(like)))

    def vary(x: Any) -> Any:
        return jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying")

    return jax.tree.map(vary, tree)


def _varying(x: Any) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying


_ARRAY = object()  # placeholder for an array


# Compiled once: without `jit`, each call would make its loops anew, and compile them.
@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _call(loss: Callable[..., Any], tree: Any, rest: tuple, arrays: Sequence[AnyArray]) -> Any:
    """Calls a loss with its arrays in their places among the other arguments."""
    each = iter(arrays)
    args, kwargs = jax.tree.unflatten(tree, [next(each) if x is _ARRAY else x for x in rest])
    return loss(*args, **kwargs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _call_on_auto(
    loss: Callable[..., Any], mesh: AbstractMesh, tree: Any, rest: tuple, arrays: Sequence[AnyArray]
) -> Any:
    """Calls a loss as on Auto axes, in place of the Explicit ones."""
    call = functools.partial(_call, loss, tree, rest)
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = tuple(name for name, kind in types if kind == AxisType.Explicit)
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.sharding.auto_axes(call, axes=explicit, out_sharding=whole)(arrays)


def _join_mesh(x: AnyArray) -> AnyArray:
    """Puts an array on the mesh that is set, if any: as it lies there, or repeated.

    Otherwise the gradient of an array on a single device would come back on a mesh with Auto axes,
    and JAX could not go on with it.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.sharding.reshard(x, jax.typeof(x).sharding.spec)


def _find_explicit(arrays: Sequence[AnyArray]) -> AbstractMesh | None:
    """Returns the mesh with Explicit axes that arrays are on, or that is currently set."""
    meshes = [jax.typeof(x).sharding.mesh for x in arrays] + [jax.sharding.get_abstract_mesh()]
    explicit = (mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types)
    return next(explicit, None)
