"""Logical axes of parameters, and the axes of the mesh that they are split over.

Parameters with a logical axis that `RULES` maps to `fsdp` are stored split over it, with their
optimizer moments; `layer_weights` gathers them where a layer needs them and sums their gradients.
"""

from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from big_align.parallel.meshes import batch_sharding

RULES = {
    "vocab": "fsdp",
    "mlp": "fsdp",
    "heads": "fsdp",
    "channels_out": "fsdp",
    "embed": None,
    "positions": None,
    "channels_in": None,
}
"""Logical axis of a parameter -> mesh axis, None for an axis that is not split."""

INSTEAD = {"embed": "fsdp"}
"""What is split of a parameter whose own axis does not divide, as BERT's vocabulary of 30,522."""


def partition(names: Iterable[str | None], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Maps logical names to mesh axes; each mesh axis is used once, and only where it divides."""
    names = tuple(names)
    for name in names:
        if name is not None and name not in RULES:
            raise ValueError(f"logical axis {name!r} is not in the table; known: {sorted(RULES)}")
    axes: list[str | None] = [None] * len(shape)
    if not any(name and RULES[name] for name in names):
        return PartitionSpec(*axes)
    for table in (RULES, INSTEAD):
        for place, name in enumerate(names):
            axis = table.get(name or "")
            if axis is None or axis in axes or mesh.shape[axis] == 1:
                continue
            if shape[place] % mesh.shape[axis] == 0:
                axes[place] = axis
    return PartitionSpec(*axes)


def state_shardings(boxed_params: Any, state: Any, mesh: Mesh) -> Any:
    """Returns the placement of each leaf of a training state.

    Parameters, whose logical names `boxed_params` has, follow the table. Arrays that mirror a
    parameter (moments, averages: the same path of dictionary keys and the same shape) are placed
    like it, tables are split over all devices, and everything else is replicated.
    """
    logical = nn.get_partition_spec(boxed_params)
    arrays = nn.meta.unbox(boxed_params)
    table: dict[tuple[str, ...], tuple[tuple[int, ...], PartitionSpec]] = {}
    specs = jax.tree_util.tree_leaves(logical, is_leaf=lambda x: isinstance(x, PartitionSpec))
    for (path, array), names in zip(
        jax.tree_util.tree_leaves_with_path(arrays), specs, strict=True
    ):
        table[_names(path)] = (array.shape, partition(names, array.shape, mesh))

    def place(path: tuple, leaf: Any) -> NamedSharding:
        if path[0] == jax.tree_util.GetAttrKey("tables"):
            return batch_sharding(mesh)
        shape, spec = table.get(_names(path), (None, PartitionSpec()))
        return NamedSharding(mesh, spec if leaf.shape == shape else PartitionSpec())

    return jax.tree_util.tree_map_with_path(place, state)


def _names(path: tuple) -> tuple[str, ...]:
    """Returns the keys of dictionaries alone, which moments share with their parameters."""
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
