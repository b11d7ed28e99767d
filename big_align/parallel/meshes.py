"""The mesh, whose two axes are `data` and `fsdp`, and what is placed on it whole or by rows.

The order of its devices follows the interconnect: `fsdp`, over which most bytes move, stays within
a TPU slice or a GPU node; `data` goes across slices and nodes. Rows are split over both.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from big_align.parallel.devices.device_order import arrange_devices, group_devices

BATCH_AXES = ("data", "fsdp")

NEIGHBORS = 8
"""Devices of a slice or node that parameters are split over by default, at most.

An eighth of the parameters and moments is little, and at usual widths its rows fill whole tiles of
a TPU. In the plans of docs/scale, steps with pieces take at most the time of those without.
"""


def make_mesh(
    fsdp: int | None = None,
    devices: Sequence[Any] | None = None,
    shape: tuple[int, int] | None = None,
) -> Mesh:
    """Makes the (data, fsdp) mesh over all devices, in an order that suits the machine.

    Args:
      fsdp: number of devices that each parameter is split over; divides the number of devices. None
        for 8 of those of a TPU slice or GPU node, or for 4 or 2 where 8 do not divide them.
      devices: the devices to use, or descriptions of them; None for all.
      shape: sizes of both axes, (data, fsdp); `fsdp` is then None or the second of them.

    Returns:
      The mesh, with Auto axes named "data" and "fsdp"; a batch is split over both.

    Raises:
      ValueError: the sizes do not multiply to the number of devices.

    Examples:
      >>> import jax
      >>> import big_align
      >>> mesh = big_align.make_mesh(devices=jax.devices()[:1])
      >>> dict(mesh.shape)
      {'data': 1, 'fsdp': 1}
    """
    devices = jax.devices() if devices is None else devices
    count = len(devices)
    if shape is not None and (len(shape) != 2 or min(shape) < 1 or math.prod(shape) != count):
        sizes = f"mesh.shape = {tuple(shape)} are not two sizes, of data and of fsdp, whose product"
        raise ValueError(f"{sizes} is the number of devices, {count}")
    if shape is not None and fsdp not in (None, shape[1]):
        raise ValueError(f"mesh.fsdp = {fsdp} is not that of mesh.shape = {tuple(shape)}: set one")
    if shape is not None:
        fsdp = shape[1]
    elif fsdp is None:
        fsdp = math.gcd(NEIGHBORS, len(group_devices(devices)[0]))
    if fsdp < 1 or count % fsdp:
        raise ValueError(f"mesh.fsdp = {fsdp} does not divide the number of devices, {count}")
    return Mesh(arrange_devices(devices, fsdp), BATCH_AXES, axis_types=(AxisType.Auto,) * 2)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of rows that are split over all devices, such as the global batch."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def microbatch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array [microbatches, rows, ...] split over its rows."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES))


def part_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of rows that are split along `fsdp`, and repeated along `data`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES[1]))


def unsummed_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of [data, rows, ...]: each device's own addends of a part's rows."""
    return NamedSharding(mesh, PartitionSpec(*BATCH_AXES))
