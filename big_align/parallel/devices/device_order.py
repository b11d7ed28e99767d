"""The order of devices in a mesh: neighbors in the mesh are neighbors in the machine."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental import mesh_utils


def arrange_devices(devices: Sequence[Any], fsdp: int) -> np.ndarray:
    """Arranges devices as [n / fsdp, fsdp], so that the second axis stays within a slice or node.

    The network between TPU slices and GPU nodes is slower than that within them. An axis that does
    not fit into one takes as many devices as it can from each of several.
    """
    groups = group_devices(devices)
    size = len(groups[0])
    inside = math.gcd(fsdp, size)
    across = fsdp // inside  # divides the number of groups, as fsdp divides that of devices
    blocks = [_follow_wires((size // inside, inside), group) for group in groups]
    rows = [np.concatenate(blocks[i : i + across], 1) for i in range(0, len(blocks), across)]
    return np.concatenate(rows)


def group_devices(devices: Sequence[Any]) -> list[list[Any]]:
    """Groups devices by the fast network that connects them: a TPU slice, a GPU node, a process."""
    groups: dict[int, list[Any]] = {}
    for device in devices:
        group = getattr(device, "slice_index", None)
        if group is None:
            group = 0 if device.platform == "tpu" else device.process_index
        groups.setdefault(group, []).append(device)
    ordered = [groups[key] for key in sorted(groups)]
    if len({len(group) for group in ordered}) > 1:  # a part of a machine: no order is good
        return [list(devices)]
    return ordered


def _follow_wires(shape: tuple[int, int], devices: Sequence[Any]) -> np.ndarray:
    """Arranges the devices of one network along the torus of a TPU slice."""
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(shape)
    try:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (AssertionError, NotImplementedError, ValueError):
        # Not a whole torus, for example the devices of one host: any order is correct, if slower.
        return np.array(devices).reshape(shape)
