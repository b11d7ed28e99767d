"""Placement: the mesh, the table from logical axes to mesh axes, and where every array lies.

This is the only module that knows the mesh. The mesh has two axes: `data` and `fsdp`. The batch is
split over both. Parameters whose logical axes stand in `RULES` are stored in pieces over `fsdp`
together with their optimizer moments; `gather` collects them for a computation, and its transpose
scatters their gradients back.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from big_align.types import Batch

BATCH_AXES = ("data", "fsdp")

RULES = {
    "vocab": "fsdp",
    "mlp": "fsdp",
    "heads": "fsdp",
    "channels_out": "fsdp",
    "embed": None,
    "positions": None,
    "channels_in": None,
}
"""Logical axis of a parameter -> mesh axis, None for an axis that is never split."""


def make_mesh(fsdp: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Makes the (data, fsdp) mesh over all devices.

    Args:
      fsdp: over how many devices each parameter is split; divides the number of devices.
      devices: the devices to use; all of them by default.

    Raises:
      ValueError: `fsdp` does not divide the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if fsdp < 1 or len(devices) % fsdp:
        raise ValueError(
            f"mesh.fsdp = {fsdp} does not divide the number of devices, {len(devices)}"
        )
    shape = (len(devices) // fsdp, fsdp)
    return jax.make_mesh(shape, BATCH_AXES, axis_types=(AxisType.Auto,) * 2, devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array whose leading axis is the global batch."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def table_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of a table whose rows are split over all devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def microbatch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array [microbatches, rows, ...] split over its rows."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES))


def process_rows(mesh: Mesh, batch_size: int) -> tuple[int, int]:
    """Returns the rows [low, high) of the global batch that this process has to load.

    Raises:
      ValueError: the batch does not divide over the devices, or the rows of this process are not
        contiguous (the mesh interleaves processes).
    """
    if batch_size % mesh.size:
        raise ValueError(
            f"batch_size = {batch_size} is not a multiple of the number of devices, {mesh.size}"
        )
    slices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    starts = {s[0].start or 0: batch_size if s[0].stop is None else s[0].stop for s in slices}
    low, high = min(starts), max(starts.values())
    if sum(stop - start for start, stop in starts.items()) != high - low:
        raise ValueError(f"the rows of process {jax.process_index()} are not contiguous: {starts}")
    return low, high


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> Batch:
    """Makes global arrays from the rows that each process has loaded."""
    sharding = batch_sharding(mesh)
    return {k: jax.make_array_from_process_local_data(sharding, v) for k, v in batch.items()}


def gather(tree: Any, mesh: Mesh) -> Any:
    """Collects every leaf on every device inside a compiled function."""
    return jax.lax.with_sharding_constraint(tree, replicated(mesh))


def map_rows(
    function: Callable[[Any, Any], Any], whole: Any, rows: Any, mesh: Mesh
) -> Any:
    """Runs a function on every device, on its part of the rows, inside a compiled function.

    Nothing moves between devices but the gradient of `whole`, which is summed over them once.

    Args:
      function: of `whole` and of the rows of one device; returns rows.
      whole: arrays that every device sees whole.
      rows: arrays whose leading axis is a multiple of the number of devices.
      mesh: the devices.

    Returns:
      The rows of all devices, in the order of `rows`.
    """
    split = PartitionSpec(BATCH_AXES)
    run = jax.shard_map(
        function, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split, check_vma=False
    )
    return run(whole, rows)


def map_shards(function: Callable[[Any, Any], Any], split: Any, whole: Any, mesh: Mesh) -> Any:
    """Runs a function on every device, on its parts of tables, inside a compiled function.

    Nothing moves between devices but what the function itself sends over `BATCH_AXES`.

    Args:
      function: of (split, whole); returns (split, whole), the latter equal on every device.
      split: arrays whose leading axis is cut over all devices.
      whole: arrays that every device sees whole.
      mesh: the devices.

    Returns:
      What the function returns, its first part laid out like `split`.
    """
    specs = PartitionSpec(BATCH_AXES), PartitionSpec()
    run = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
    return run(split, whole)


def concatenate_rows(arrays: Sequence[Array], mesh: Mesh) -> Array:
    """Lays arrays one below the other on each device, so that no row moves between devices.

    Args:
      arrays: their leading axes are multiples of the number of devices.
      mesh: the devices.

    Returns:
      The rows of the first device from all arrays in turn, then those of the second, and so on.
    """
    parts = [x.reshape(mesh.size, -1, *x.shape[1:]) for x in arrays]
    both = jax.numpy.concatenate(parts, axis=1)
    both = jax.lax.with_sharding_constraint(both, batch_sharding(mesh))
    return both.reshape(-1, *both.shape[2:])


def _partition(names: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Maps logical names to mesh axes; each mesh axis is used once, and only where it divides."""
    axes: list[str | None] = []
    for name, size in zip(tuple(names) + (None,) * (len(shape) - len(names)), shape, strict=True):
        if name is not None and name not in RULES:
            raise ValueError(f"logical axis {name!r} is not in the table; known: {sorted(RULES)}")
        axis = RULES.get(name)
        axes.append(None if axis in axes or axis is None or size % mesh.shape[axis] else axis)
    return PartitionSpec(*axes)


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def state_shardings(boxed_params: Any, state: Any, mesh: Mesh) -> Any:
    """Returns the placement of each leaf of a training state.

    Parameters follow the table; arrays that mirror a parameter (moments, averages: the same path of
    dictionary keys and the same shape) lie as it does; tables are split over all devices;
    everything else is replicated.

    Args:
      boxed_params: abstract parameters with the logical names of their axes, from `init`.
      state: the abstract state.
      mesh: the mesh.
    """
    logical = nn.get_partition_spec(boxed_params)
    arrays = nn.meta.unbox(boxed_params)
    table: dict[tuple[str, ...], tuple[tuple[int, ...], PartitionSpec]] = {}
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    specs = jax.tree_util.tree_leaves(logical, is_leaf=is_spec)
    for (path, array), names in zip(
        jax.tree_util.tree_leaves_with_path(arrays), specs, strict=True
    ):
        table[_names(path)] = (array.shape, _partition(names, array.shape, mesh))

    def place(path: tuple, leaf: Any) -> NamedSharding:
        if path[0] == jax.tree_util.GetAttrKey("tables"):
            return table_sharding(mesh)
        shape, spec = table.get(_names(path), (None, PartitionSpec()))
        return NamedSharding(mesh, spec if leaf.shape == shape else PartitionSpec())

    return jax.tree_util.tree_map_with_path(place, state)
