"""The state of an optimizer that goes on from the one of an earlier run, parameter by parameter."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from big_align.parallel.meshes import replicated
from big_align.training.layer_rates import list_names

MOMENTS = (optax.ScaleByAdamState, optax.TraceState)
"""The states that hold moments of gradients; all others begin anew, as a schedule's count does."""
Fit = Callable[[str, np.ndarray, tuple[int, ...]], np.ndarray | None]


def keep_moments(fresh: Any, former: Any, fit: Fit) -> tuple[Any, list[str]]:
    """Takes moments, and how many gradients are in them, from the state of another optimizer.

    Args:
      fresh: the state of an optimizer that has done no step; arrays keep its placement.
      former: that of another one, of any chain with moments of the same kind, on the same devices.
      fit: makes the moments of a parameter, an array by its path, have another shape; None if they
        cannot.

    Returns:
      The state, and the paths of parameters whose moments stay zero.
    """
    found = _find_moments(former)
    arrays = {
        (field, list_names(path)): leaf
        for each in found
        for field, tree in each._asdict().items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    left: dict[str, None] = {}

    def keep(field: str, path: tuple, leaf: jax.Array) -> jax.Array:
        kept, name = arrays.get((field, list_names(path))), "/".join(list_names(path))
        if kept is not None and kept.shape == leaf.shape:
            return jax.device_put(kept, leaf.sharding)
        made = None if kept is None else _fit(fit, name, kept, leaf.shape)
        if made is None:
            left[name] = None
            return leaf
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, made.__getitem__)

    def keep_all(node: Any) -> Any:
        if not isinstance(node, MOMENTS):
            return node
        return type(node)(
            **{
                field: jax.tree_util.tree_map_with_path(lambda p, x, f=field: keep(f, p, x), tree)
                for field, tree in node._asdict().items()
            }
        )

    return jax.tree.map(keep_all, fresh, is_leaf=_has_moments), list(left)


def read_whole(array: jax.Array) -> np.ndarray:
    """Reads an array of which this process may have a part."""
    placed: Any = array.sharding
    return np.asarray(jax.device_put(array, replicated(placed.mesh)))


def _find_moments(state: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(state, is_leaf=_has_moments) if _has_moments(x)]


def _has_moments(node: Any) -> bool:
    return isinstance(node, MOMENTS)


def _fit(fit: Fit, name: str, kept: jax.Array, shape: tuple[int, ...]) -> np.ndarray | None:
    """Makes moments have another shape; rows of which there were none are zero.

    Interpolation overshoots, and a second moment below zero has no root: values stay within those
    that there were.
    """
    whole = read_whole(kept)
    if (made := fit(name, whole, shape)) is None:
        return None
    rows = np.zeros(shape, whole.dtype)
    rows[: len(made)] = np.clip(made, whole.min(), whole.max())
    return rows
