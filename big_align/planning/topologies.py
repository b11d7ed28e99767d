"""TPU topologies, described on a machine without any TPU.

libtpu compiles for a topology given by name. The devices that it describes have coordinates,
process and slice indices as on the real machine; programs can be compiled for them, but not run.
"""

import importlib.util
import math
import os
import platform
import sys
from dataclasses import dataclass

import jax
from jax.experimental import topologies

from big_align.core.errors import UserError, WrongValue

_ENVIRONMENT = {
    # Without these, libtpu looks for the metadata server of a TPU VM, and for its neighbors.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Planning runs alongside other processes that have loaded libtpu.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclass(frozen=True)
class Generation:
    """One generation of TPUs."""

    shapes: tuple[str, ...]  # the slices that Cloud TPU offers, "4x4" or "2x2x4", in chips
    host: tuple[int, int, int] = (2, 2, 1)  # chips along x, y and z, if a slice has several hosts
    single_host: tuple[str, ...] = ()  # on one host, though they are larger or smaller than `host`
    arguments: tuple[tuple[str, str], ...] = ()  # for libtpu, besides the name


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
    *("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x4x12", "4x8x8", "4x4x16"),
    *("4x8x12", "8x8x8", "8x8x12", "8x8x16", "8x16x16", "16x16x16"),
)

# Shapes and hosts: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the page
# of each generation there; https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
GENERATIONS = {
    "v2": Generation(("2x2", "4x4", "8x8", "8x16", "16x16")),
    "v3": Generation(("2x2", "4x4", "8x8", "8x16", "16x16", "16x32", "32x32")),
    # A v4 chip is one device ("megacore") on Cloud TPU; libtpu describes two unless told otherwise.
    "v4": Generation(_CUBES, arguments=(("chip_config_name", "megacore"),)),
    "v5e": Generation(_FLAT, single_host=("1x1", "2x4")),
    "v5p": Generation((*_CUBES, "16x16x24")),
    "v6e": Generation(_FLAT, single_host=("1x1", "2x4")),
    "tpu7x": Generation((*_CUBES, "16x16x32", "16x16x36")),
}


def largest() -> list[str]:
    """Returns the largest topology of each generation."""
    return [f"{name}:{each.shapes[-1]}" for name, each in GENERATIONS.items()]


def parse_topology(name: str) -> tuple[Generation, tuple[int, ...]]:
    """Returns the generation of a topology and its shape in chips."""
    kind, _, shape = name.partition(":")
    if kind not in GENERATIONS:
        known = ", ".join(largest())
        raise WrongValue(f"topology {name!r} is not known; generations, by their largest: {known}")
    if shape not in GENERATIONS[kind].shapes:
        known = ", ".join(GENERATIONS[kind].shapes)
        raise WrongValue(f"topology {name!r} is not known; {kind} has {known}")
    return GENERATIONS[kind], tuple(int(size) for size in shape.split("x"))


def count_chips(name: str) -> int:
    """Returns the number of chips in one slice of a topology."""
    return math.prod(parse_topology(name)[1])


def check_libtpu(name: str) -> None:
    """Checks that TPUs can be described."""
    if importlib.util.find_spec("libtpu") is None:
        how = ": pip install '.[plan]'"
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            how = ", which is for Linux on x86-64 only; plans for GPUs, as h100:8x8, do without"
        raise UserError(f"describing {name} needs libtpu{how}")


def topology_devices(name: str, slices: int = 1) -> list[jax.Device]:
    """Describes the devices of one or several slices of a TPU topology, "GENERATION:SHAPE".

    They have `coords`, `process_index` and, if there are several slices, `slice_index`. Processes
    are numbered within each slice first.
    """
    generation, shape = parse_topology(name)
    if slices < 1:
        raise UserError(f"{slices} slices of {name}; at least 1 is needed")
    check_libtpu(name)
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    whole = name.partition(":")[2] in generation.single_host
    host = (*shape, 1)[:3] if whole else generation.host
    arguments = {**dict(generation.arguments), "chips_per_host_bounds": host}
    if slices > 1:
        arguments["num_slices"] = slices
    return topologies.get_topology_desc(name, platform="tpu", **arguments).devices
