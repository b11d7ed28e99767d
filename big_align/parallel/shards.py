"""Work on rows that are split over devices, and what these devices tell each other."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Int

from big_align.parallel.devices.traced import weights_on
from big_align.parallel.meshes import batch_sharding, part_sharding, unsummed_sharding


@dataclasses.dataclass(frozen=True)
class Shards:
    """The devices that share the rows of arrays, and the communication between them.

    The losses take one as `mesh=` where not all axes of a mesh split the batch. Methods other than
    `over` and `run` are for functions that `run` calls on every device.

    Attributes:
      mesh: the devices; None for a single one, which has all rows.
      axes: the axes of the mesh over which rows are split; along the others, rows are repeated.

    Raises:
      ValueError: the mesh has no such axis.

    Examples:
      Every device sums its own rows, and then all devices sum what they have:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> import big_align
      >>> mesh = big_align.make_mesh(devices=jax.devices()[:1])
      >>> shards = big_align.Shards(mesh, ("data",))
      >>> def add(rows, scale):
      ...     return rows, shards.sum(scale * rows.sum())
      >>> rows, total = shards.run(add, jnp.arange(4.0), 2.0)
      >>> print(shards.size, total)
      1 12.0
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
        """Splits rows over all axes of a mesh.

        Args:
          mesh: the devices, None for a single one, or a `Shards`, which is returned unchanged.
        """
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
        """Returns the number of this device among those with different rows, from 0 on."""
        return jax.lax.axis_index(self.axes) if self.axes else jnp.int32(0)

    def gather(self, x: Any) -> Any:
        """Returns the rows of all devices, one after the other, on each of them."""
        return jax.lax.all_gather(x, self.axes, tiled=True) if self.axes else x

    def sum(self, x: Array) -> Array:
        """Returns the sum over devices, element by element."""
        return jax.lax.psum(x, self.axes) if self.axes else x

    def max(self, x: Array) -> Array:
        """Returns the maximum over devices, element by element."""
        return jax.lax.pmax(x, self.axes) if self.axes else x

    def scatter_sum(self, x: Array) -> Array:
        """Returns this device's rows of the sum over devices."""
        return jax.lax.psum_scatter(x, self.axes, tiled=True) if self.axes else x


def locate_rows(
    rows: Int[Array, "..."], first: Int[Array, ""] | int, size: int
) -> Int[Array, "..."]:
    """Returns the positions of rows of a whole in its part of `size` rows starting at `first`.

    It is `size` for rows outside the part. On device i of equal shards, `first` is i * `size`.
    """
    inside = (rows >= first) & (rows < first + size)
    return jnp.where(inside, rows - first, size)


def map_rows(function: Callable[[Any, Any], Any], whole: Any, rows: Any, mesh: Mesh) -> Any:
    """Runs a function of `whole` and a device's part of the rows on every device, when compiled.

    Nothing moves between devices except the gradient of `whole`, which is summed over them once.
    The number of rows is a multiple of that of devices; results are in the order of the rows.
    """

    def run(rows: Any, whole: Any) -> tuple[Any, tuple]:
        return function(whole, rows), ()

    with weights_on(None):
        return Shards.over(mesh).run(run, rows, whole)[0]


def map_parts(
    function: Callable[..., Any], parts: Any, rows: Any, addends: Sequence[Array], mesh: Mesh
) -> Any:
    """Runs a function on every device, when compiled; nothing moves but what the function sends.

    It takes a device's `parts` (`part_sharding`), its rows, and its addends (`unsummed_sharding`),
    and returns rows and as many addends.
    """
    part, batch, own = (
        place(mesh).spec for place in (part_sharding, batch_sharding, unsummed_sharding)
    )
    each = [own] * len(addends)
    with weights_on(mesh), weights_on(None):
        return jax.shard_map(
            function, mesh=mesh, in_specs=(part, batch, *each), out_specs=(batch, *each),
            check_vma=False,
        )(parts, rows, *addends)  # fmt: skip


def concatenate_rows(arrays: Sequence[Array], mesh: Mesh) -> Array:
    """Concatenates arrays along their rows on each device, so that no row moves between devices.

    So the rows of the first device from all arrays come first, then those of the second, and so on.
    Their numbers are multiples of that of devices.
    """
    parts = [x.reshape(mesh.size, -1, *x.shape[1:]) for x in arrays]
    both = jnp.concatenate(parts, axis=1)
    both = jax.lax.with_sharding_constraint(both, batch_sharding(mesh))
    return both.reshape(-1, *both.shape[2:])
