"""The rows of the global batch: which of them a process loads, and how they become arrays."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from big_align.core.types import Batch
from big_align.parallel.meshes import batch_sharding


def process_rows(mesh: Mesh, batch_size: int, process: int | None = None) -> Int[np.ndarray, " r"]:
    """Returns the rows of the global batch that a process has to load, in ascending order.

    The mesh follows the machine, so the rows of a process's devices may be anywhere in the batch.
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

        def read(index: Any) -> np.ndarray:
            low, high, _ = index[0].indices(size)
            first = np.searchsorted(rows, low)
            return array[first : first + high - low]

        return jax.make_array_from_callback((size, *array.shape[1:]), batch_sharding(mesh), read)

    return {name: place(array) for name, array in batch.items()}
