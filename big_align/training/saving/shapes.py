"""Shapes of a saved state, compared with those of the state that is wanted."""

from typing import Any

import jax

Shapes = dict[str, tuple[int, ...]]
"""Shapes of arrays by path."""


def list_shapes(tree: Any) -> Shapes:
    """Flattens a tree into path -> shape; absent entries (None) do not appear.

    The number of rows of tables is left out, since their padding depends on the number of devices.
    """
    is_leaf = lambda x: hasattr(x, "shape")  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    shapes = {
        "/".join(map(_name_key, path)): tuple(leaf.shape)
        for path, leaf in leaves
        if getattr(leaf, "shape", None) is not None
    }
    return {k: v[1:] if k.startswith("tables/") else v for k, v in shapes.items()}


def describe_difference(saved: Shapes, wanted: Shapes, most: int = 12) -> str:
    """Lists, one per line, the differences between the shapes of a checkpoint and those wanted."""
    lines = [f"only in the checkpoint: {k} {saved[k]}" for k in saved.keys() - wanted.keys()]
    lines += [f"only in the config's model: {k} {wanted[k]}" for k in wanted.keys() - saved.keys()]
    lines += [
        f"{k}: {saved[k]} in the checkpoint, {wanted[k]} in the config's model"
        for k in saved.keys() & wanted.keys()
        if saved[k] != wanted[k]
    ]
    more = [f"... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in sorted(lines)[:most] + more)


def _name_key(key: Any) -> str:
    return str(next(getattr(key, a) for a in ("key", "name", "idx") if hasattr(key, a)))
