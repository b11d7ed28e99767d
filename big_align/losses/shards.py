"""How a loss with its own gradient is split over devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array


@dataclasses.dataclass(frozen=True)
class Shards:
    """The devices that share the rows of a loss, and what moves between them.

    Attributes:
      mesh: the devices; None computes in one piece.
      axes: the axes of the mesh over which rows are split.
    """

    mesh: Mesh | None
    axes: tuple[str, ...]

    def run(self, function: Callable, split: Any, whole: Any) -> Any:
        """Runs a function of (split, whole) that returns (split, whole) on every device.

        Arrays of `split` are cut by rows, those of `whole` are on every device. No derivative is
        taken through this, so no collective needs a transpose.
        """
        if self.mesh is None:
            return function(split, whole)
        specs = PartitionSpec(self.axes), PartitionSpec()
        run = jax.shard_map(
            function, mesh=self.mesh, in_specs=specs, out_specs=specs, check_vma=False
        )
        return run(split, whole)

    def gather(self, x: Array) -> Array:
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
