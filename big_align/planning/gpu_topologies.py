"""NVIDIA GPUs, described on a machine without any GPU.

Where JAX is installed for CUDA, XLA's compiler for GPUs takes their description as text, and
compiles for them without one being there. It cannot try which of several kernels is fastest, as it
does on the GPU itself, and takes one by rule.

Sources of the descriptions: NVIDIA's papers on the A100, H100 and Blackwell architectures, its data
sheets, and the table of compute capabilities in the CUDA C++ Programming Guide.
"""

import importlib.util
import os
import pkgutil
from typing import NamedTuple

import jax
from jax.experimental import topologies

from big_align.parallel.devices.chips import CHIPS


class Target(NamedTuple):
    """What a program's layout on a GPU depends on, besides `Chip`."""

    capability: tuple[int, int]  # compute capability, major and minor
    processors: int  # streaming multiprocessors
    lanes: int  # float32 units of each
    clock: float  # GHz, boosted
    cache: int  # bytes of the second-level cache
    shared: int  # KiB of shared memory of a multiprocessor; a block may have one less


_A100 = Target((8, 0), 108, 64, 1.41, 40 * 2**20, 164)
_H100 = Target((9, 0), 132, 128, 1.98, 50 * 2**20, 228)
TARGETS = {
    "a100-40gb": _A100,
    "a100": _A100,
    "h100": _H100,
    "h200": _H100,
    "b200": Target((10, 0), 148, 128, 1.965, 126 * 2**20, 228),
}
"""The GPUs that can be described, by `Chip.name`."""


def has_compiler() -> bool:
    """Returns whether JAX is installed for CUDA here."""
    plugins = importlib.util.find_spec("jax_plugins")
    found = plugins.submodule_search_locations if plugins else None
    return any(each.name.startswith("xla_cuda") for each in pkgutil.iter_modules(found or []))


def describe_gpus(name: str, nodes: int, gpus: int) -> list[jax.Device]:
    """Describes the GPUs of some nodes, by a name in `TARGETS`; `process_index` is the node."""
    # The plugin would look for a driver and fail.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    return topologies.get_topology_desc(
        name, platform="cuda", target_config=_describe(name), topology=f"1x{nodes}x{gpus}"
    ).devices


def _describe(name: str) -> str:
    """Returns a `GpuTargetConfigProto` of XLA as text."""
    target, chip = TARGETS[name], CHIPS[name]
    major, minor = target.capability
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * 1024,
        "shared_memory_per_block_optin": (target.shared - 1) * 1024,
        "shared_memory_per_core": target.shared * 1024,
        "threads_per_core_limit": 2048,
        "core_count": target.processors,
        "fpus_per_core": target.lanes,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(chip.memory_bandwidth),
        "l2_cache_size": target.cache,
        "clock_rate_ghz": target.clock,
        "device_memory_size": chip.memory,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
    }
    lines = "".join(f"  {field}: {value}\n" for field, value in info.items())
    lines += f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n"
    rest = 'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 10 }\n'
    return f'gpu_device_info {{\n{lines}}}\n{rest}device_description_str: "{chip.kinds[0]}"\n'
