"""Placement: the mesh, the table from logical axes to mesh axes, and where every array is placed.

This is the only module that knows the mesh. The mesh has two axes, `data` and `fsdp`. The order of
its devices follows the interconnect: `fsdp`, over which most bytes move, stays within a TPU slice
or a GPU node; `data` goes across slices and nodes. The batch is split over both. Parameters with a
logical axis that `RULES` maps to `fsdp` are stored split over it, with their optimizer moments;
`layer_weights` gathers them where a layer needs them and sums their gradients.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from big_align.devices.device_order import arrange_devices
from big_align.devices.traced import weights_on
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


def make_mesh(
    fsdp: int = 1,
    devices: Sequence[Any] | None = None,
    shape: tuple[int, int] | None = None,
) -> Mesh:
    """Makes the (data, fsdp) mesh over all devices, in an order that suits the machine.

    Args:
      fsdp: number of devices that each parameter is split over; divides the number of devices.
      devices: the devices to use, or descriptions of them; all of them by default.
      shape: sizes of both axes; `fsdp` is then 1 or the second of them.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if shape is not None and (len(shape) != 2 or min(shape) < 1 or math.prod(shape) != count):
        sizes = f"mesh.shape = {tuple(shape)} are not two sizes, of data and of fsdp, whose product"
        raise ValueError(f"{sizes} is the number of devices, {count}")
    if shape is not None and fsdp not in (1, shape[1]):
        raise ValueError(f"mesh.fsdp = {fsdp} is not that of mesh.shape = {tuple(shape)}: set one")
    fsdp = fsdp if shape is None else shape[1]
    if fsdp < 1 or count % fsdp:
        raise ValueError(f"mesh.fsdp = {fsdp} does not divide the number of devices, {count}")
    return Mesh(arrange_devices(devices, fsdp), BATCH_AXES, axis_types=(AxisType.Auto,) * 2)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array whose leading axis is the global batch."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def table_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of a table whose rows are split over all devices."""
    return batch_sharding(mesh)


def microbatch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array [microbatches, rows, ...] split over its rows."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES))


def process_rows(mesh: Mesh, batch_size: int, process: int | None = None) -> Int[np.ndarray, " r"]:
    """Returns the rows of the global batch that a process has to load, in ascending order.

    The mesh follows the machine, so the rows of a process's devices may be anywhere in the batch.

    Args:
      mesh: the devices.
      batch_size: rows of the global batch.
      process: number of the process; None for this one.

    Raises:
      ValueError: the batch does not divide over the devices.
    """
    if batch_size % mesh.size:
        raise ValueError(f"batch_size = {batch_size} {explain_division(batch_size, mesh.size)}")
    process = _this_process() if process is None else process
    mine = np.flatnonzero([device.process_index == process for device in mesh.devices.flat])
    rows = batch_size // mesh.size
    return (mine[:, None] * rows + np.arange(rows)).reshape(-1)


def _this_process() -> int:
    return jax.local_devices()[0].process_index


def explain_division(size: int, devices: int, microbatches: int = 1) -> str:
    """Continues "X = size": says that it does not divide over the devices, and what would."""
    parts = devices * microbatches
    below, above = size - size % parts, size - size % parts + parts
    nearest = f"{below} and {above} are the nearest that are" if below else f"{above} is the least"
    times = f" times microbatches = {microbatches}" if microbatches > 1 else ""
    plural = "s" if devices > 1 else ""
    return f"is not a multiple of {devices} device{plural}{times}; {nearest}"


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> Batch:
    """Makes global arrays from the rows that each process has loaded, those of `process_rows`."""
    local = sum(device.process_index == _this_process() for device in mesh.devices.flat)

    def place(array: np.ndarray) -> jax.Array:
        size = len(array) // local * mesh.size
        rows = process_rows(mesh, size)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            low, high, _ = index[0].indices(size)
            first = np.searchsorted(rows, low)
            return array[first : first + high - low]

        return jax.make_array_from_callback((size, *array.shape[1:]), batch_sharding(mesh), read)

    return {name: place(array) for name, array in batch.items()}


@dataclasses.dataclass(frozen=True)
class Shards:
    """The devices that share the rows of arrays, and the communication between them.

    Attributes:
      mesh: the devices; None for a single one, which has all rows.
      axes: the axes of the mesh over which rows are split; along the others, rows are repeated.

    Raises:
      ValueError: the mesh has no such axis.
    """

    mesh: Mesh | None
    axes: Sequence[str]

    def __post_init__(self) -> None:
        axes = (self.axes,) if isinstance(self.axes, str) else tuple(self.axes)
        object.__setattr__(self, "axes", axes)
        known = self.mesh.axis_names if self.mesh else ()
        if unknown := set(self.axes) - set(known):
            raise ValueError(f"the mesh has no axis {sorted(unknown)[0]!r}; it has {list(known)}")

    @classmethod
    def over(cls, mesh: "Mesh | Shards | None") -> "Shards":
        """Splits rows over all axes of a mesh; returns a `Shards` given instead unchanged."""
        if isinstance(mesh, Shards):
            return mesh
        return cls(mesh, tuple(mesh.axis_names) if mesh else ())

    @property
    def size(self) -> int:
        """Number of devices with different rows."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes) if self.mesh else 1

    def run(self, function: Callable[[Any, Any], Any], split: Any, whole: Any) -> Any:
        """Runs a function on every device; nothing moves except what the function sends.

        It is differentiable if the function returns nothing whole.

        Args:
          function: from (split, whole) to (split, whole), the latter equal on every device.
          split: arrays whose leading axis is split over the devices.
          whole: arrays that every device sees in full.

        Returns:
          What the function returns, with its first part laid out like `split`.
        """
        if self.mesh is None:
            return function(split, whole)
        # Whatever the types of the mesh's axes are: inside, every axis is manual.
        types = (AxisType.Auto,) * len(self.mesh.axis_names)
        mesh = Mesh(self.mesh.devices, self.mesh.axis_names, axis_types=types)
        specs = PartitionSpec(self.axes), PartitionSpec()
        run = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        return run(split, whole)

    def index(self) -> Int[Array, ""]:
        """Returns the number of this device."""
        return jax.lax.axis_index(self.axes) if self.axes else jnp.int32(0)

    def gather(self, x: Any) -> Any:
        """Returns the rows of all devices."""
        return jax.lax.all_gather(x, self.axes, tiled=True) if self.axes else x

    def sum(self, x: Array) -> Array:
        """Returns the sum over devices."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def max(self, x: Array) -> Array:
        """Returns the maximum over devices."""
        return jax.lax.pmax(x, self.axes) if self.axes else x

    def scatter_sum(self, x: Array) -> Array:
        """Returns this device's rows of the sum over devices."""
        return jax.lax.psum_scatter(x, self.axes, tiled=True) if self.axes else x


def locate_rows(
    rows: Int[Array, "..."], first: Int[Array, ""] | int, size: int
) -> Int[Array, "..."]:
    """Returns the positions of rows of a whole in its part of `size` rows starting at `first`.

    Args:
      rows: the numbers of the rows in the whole.
      first: number of the part's first row; on device i of equal shards it is i * `size`.
      size: rows of the part.

    Returns:
      Positions in [0, `size`), or `size` for rows outside the part.
    """
    inside = (rows >= first) & (rows < first + size)
    return jnp.where(inside, rows - first, size)


def map_rows(function: Callable[[Any, Any], Any], whole: Any, rows: Any, mesh: Mesh) -> Any:
    """Runs a function on every device, on its part of the rows, inside a compiled function.

    Nothing moves between devices except the gradient of `whole`, which is summed over them once.

    Args:
      function: takes `whole` and the rows of one device; returns rows.
      whole: arrays that every device sees in full.
      rows: arrays whose leading axis is a multiple of the number of devices.
      mesh: the devices.

    Returns:
      The rows of all devices, in the order of `rows`.
    """

    def run(rows: Any, whole: Any) -> tuple[Any, tuple]:
        return function(whole, rows), ()

    with weights_on(None):
        return Shards.over(mesh).run(run, rows, whole)[0]


def concatenate_rows(arrays: Sequence[Array], mesh: Mesh) -> Array:
    """Concatenates arrays along their rows on each device, so that no row moves between devices.

    Args:
      arrays: their leading axes are multiples of the number of devices.
      mesh: the devices.

    Returns:
      The rows of the first device from all arrays in turn, then those of the second, and so on.
    """
    parts = [x.reshape(mesh.size, -1, *x.shape[1:]) for x in arrays]
    both = jnp.concatenate(parts, axis=1)
    both = jax.lax.with_sharding_constraint(both, batch_sharding(mesh))
    return both.reshape(-1, *both.shape[2:])


def partition(names: Iterable[str | None], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Maps logical names to mesh axes; each mesh axis is used once, and only where it divides."""
    axes: list[str | None] = []
    names = tuple(names)
    for name, size in zip(names + (None,) * (len(shape) - len(names)), shape, strict=True):
        if name is not None and name not in RULES:
            raise ValueError(f"logical axis {name!r} is not in the table; known: {sorted(RULES)}")
        axis = RULES.get(name)
        whole = axis is None or axis in axes or mesh.shape[axis] == 1 or size % mesh.shape[axis]
        axes.append(None if whole else axis)
    return PartitionSpec(*axes)


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def state_shardings(boxed_params: Any, state: Any, mesh: Mesh) -> Any:
    """Returns the placement of each leaf of a training state.

    Parameters follow the table. Arrays that mirror a parameter (moments, averages: the same path of
    dictionary keys and the same shape) are placed like it, tables are split over all devices, and
    everything else is replicated.

    Args:
      boxed_params: abstract parameters with the logical names of their axes, from `init`.
      state: the abstract state.
      mesh: the mesh.
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
            return table_sharding(mesh)
        shape, spec = table.get(_names(path), (None, PartitionSpec()))
        return NamedSharding(mesh, spec if leaf.shape == shape else PartitionSpec())

    return jax.tree_util.tree_map_with_path(place, state)
