"""Losses of arrays whose sharding is part of their type.

On a mesh with `AxisType.Explicit` axes, the default of `jax.make_mesh`, every operation has to say
how its result is sharded, and a comparison of all rows with all columns has no good answer. A loss
returns scalars, which are not sharded, so the inside may be left to the compiler.

Inside `jax.shard_map`, the type of an array names the axes along which it varies. What a loop
carries must vary along the same axes before and after, and so must an argument and its gradient.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

Loss = TypeVar("Loss", bound=Callable[..., Any])


def on_any_mesh(loss: Loss) -> Loss:
    """Lets a function that returns scalars take arrays on a mesh with Explicit axes.

    With such arrays, or under such a mesh (`jax.set_mesh`), it is compiled as on a mesh with Auto
    axes; otherwise it runs unchanged.
    """

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        dynamic = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
        arrays = [leaf for leaf, is_array in zip(leaves, dynamic, strict=True) if is_array]
        mesh = _find_explicit(arrays)
        if mesh is None:
            return loss(*args, **kwargs)
        rest = tuple(_ARRAY if is_array else x for x, is_array in zip(leaves, dynamic, strict=True))
        return _call_on_auto(loss, mesh, tree, rest, [_join_mesh(x) for x in arrays])

    return call


def vary_like(tree: Any, like: Any) -> Any:
    """Lets arrays vary along every axis of `jax.shard_map` along which others vary.

    The gradient of an array is then the sum over the axes that it did not vary along.

    Args:
      tree: arrays.
      like: other arrays, or the same ones.

    Returns:
      Arrays with the values of `tree`; outside of `jax.shard_map` the same ones.
    """
    axes = frozenset().union(*map(_varying, jax.tree.leaves(like)))

    def vary(x: Any) -> Any:
        return jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying")

    return jax.tree.map(vary, tree)


def _varying(x: Any) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying


_ARRAY = object()  # placeholder for an array


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _call_on_auto(
    loss: Callable[..., Any], mesh: AbstractMesh, tree: Any, rest: tuple, arrays: list[jax.Array]
) -> Any:
    """Calls a loss as on Auto axes; compiled, since outside `jit` arrays would not follow."""

    def call(arrays: list[jax.Array]) -> Any:
        each = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(each) if x is _ARRAY else x for x in rest])
        return loss(*args, **kwargs)

    whole = NamedSharding(mesh, PartitionSpec())
    return jax.sharding.auto_axes(call, out_sharding=whole)(arrays)


def _join_mesh(x: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Puts an array on the mesh that is set, if any: as it lies there, or repeated.

    Otherwise the gradient of an array on a single device would come back on a mesh with Auto axes,
    and JAX could not go on with it.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.sharding.reshard(x, jax.typeof(x).sharding.spec)


def _find_explicit(arrays: list[jax.Array]) -> AbstractMesh | None:
    """Returns the mesh with Explicit axes that arrays are on, or that is currently set."""
    meshes = [jax.typeof(x).sharding.mesh for x in arrays] + [jax.sharding.get_abstract_mesh()]
    explicit = (mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types)
    return next(explicit, None)
