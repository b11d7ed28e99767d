"""The machine to plan for: TPU slices, or nodes of GPUs, with their published peaks."""

import dataclasses
import re

import jax

from big_align.core.errors import UserError, WrongValue
from big_align.parallel.devices.chips import CHIPS, Chip
from big_align.planning import gpu_topologies, topologies


@dataclasses.dataclass(frozen=True)
class Machine:
    """Devices that programs can be compiled for, and their properties."""

    name: str  # as in "v5e:16x16" or "h100:8x8"
    slices: int  # connected by the data center's network
    chip: Chip
    devices: tuple[jax.Device, ...]  # CPUs stand in for GPUs if JAX is not installed for CUDA
    hosts: int  # number of processes

    @property
    def stands_in(self) -> bool:
        """Whether the devices are CPUs that stand in for the actual ones."""
        return self.devices[0].platform == "cpu"

    @property
    def num_chips(self) -> int:
        """Number of chips in all slices."""
        return len(self.devices) // self.chip.devices_per_chip

    def place(self, device: jax.Device) -> int:
        """Returns the number of the slice or node of a device, within which the network is fast."""
        if self.chip.name in _gpus():
            return self.devices.index(device) // self.chip.devices_per_host
        return getattr(device, "slice_index", None) or 0


def find_machine(name: str, slices: int = 1) -> Machine:
    """Describes a machine: a TPU topology, "v5e:16x16", or NODES x GPUS of a GPU, "h100:8x8"."""
    check_machine(name, slices)
    kind, count = name.partition(":")[0], count_devices(name, slices)
    if kind in topologies.GENERATIONS:
        devices = tuple(topologies.topology_devices(name, slices))
        hosts = len({device.process_index for device in devices})
        return Machine(name, slices, CHIPS[kind], devices, hosts)
    nodes, gpus = gpu_shape(name)
    if gpu_topologies.has_compiler():
        devices = tuple(gpu_topologies.describe_gpus(kind, nodes, gpus))
    else:
        devices = tuple(jax.devices("cpu")[:count])
    if len(devices) < count:
        raise UserError(
            f"{name} needs {count} virtual devices and there are {len(devices)}: set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before jax starts"
        )
    chip = dataclasses.replace(CHIPS[kind], chips_per_host=gpus)
    return Machine(name, 1, chip, devices, nodes)


def count_chips(name: str, slices: int = 1) -> int:
    """Returns the number of chips of a machine."""
    if name.partition(":")[0] not in CHIPS:
        raise WrongValue(
            f"topology {name!r} is not known; there are {', '.join(topologies.largest())}, and "
            f"NODESxGPUS of {', '.join(_gpus())}, such as h100:8x8"
        )
    if name.partition(":")[0] in topologies.GENERATIONS:
        return topologies.count_chips(name) * slices
    nodes, gpus = gpu_shape(name)
    return nodes * gpus


def count_devices(name: str, slices: int = 1) -> int:
    """Returns the number of devices of a machine, as JAX counts them."""
    return count_chips(name, slices) * CHIPS[name.partition(":")[0]].devices_per_chip


def check_machine(name: str, slices: int = 1) -> None:
    """Checks that a machine can be planned for."""
    if slices < 1:
        raise UserError(f"--slices={slices}: at least 1 is needed")
    count_devices(name, slices)
    kind = name.partition(":")[0]
    if kind in topologies.GENERATIONS:
        topologies.check_libtpu(name)
    elif slices != 1:
        raise UserError(f"--slices={slices} is for TPUs; more nodes of {kind} are {kind}:NODESx8")


def gpu_shape(name: str) -> tuple[int, int]:
    """Returns nodes and GPUs per node of "h100:8x8"."""
    kind, _, shape = name.partition(":")
    if not (match := re.fullmatch(r"0*([1-9]\d*)x0*([1-9]\d*)", shape)):
        raise UserError(f"topology {name!r}: write {kind}:NODESxGPUS, such as {kind}:8x8")
    return int(match[1]), int(match[2])


def virtual_devices(name: str) -> int:
    """Returns the number of CPU devices that have to stand in for those of a machine."""
    return count_devices(name) if name.partition(":")[0] in _gpus() else 1


def same_size(kind: str, num_chips: int) -> str:
    """Returns the machine of a kind with a given number of chips; GPUs in nodes of 8."""
    if kind in _gpus():
        nodes, rest = divmod(num_chips, 8)
        if num_chips < 8:
            return f"{kind}:1x{num_chips}"
        if rest:
            raise UserError(f"{num_chips} {kind} are no whole nodes of 8; name one, {kind}:2x8")
        return f"{kind}:{nodes}x8"
    if kind not in topologies.GENERATIONS:
        raise WrongValue(f"chip {kind!r} is not known; there are {', '.join(CHIPS)}")
    shapes = topologies.GENERATIONS[kind].shapes
    sizes = {topologies.count_chips(f"{kind}:{shape}"): f"{kind}:{shape}" for shape in shapes}
    if num_chips not in sizes:
        near = min(sizes, key=lambda size: abs(size - num_chips))
        raise UserError(f"no topology of {kind} has {num_chips} chips; the nearest: {sizes[near]}")
    return sizes[num_chips]


def one_host(name: str) -> str:
    """Returns the machine that is one host of another."""
    kind = name.partition(":")[0]
    if kind not in topologies.GENERATIONS:
        return f"{kind}:1x{gpu_shape(name)[1]}"
    generation, shape = topologies.parse_topology(name)
    if name.partition(":")[2] in generation.single_host:
        return name
    return f"{kind}:{'x'.join(str(size) for size in generation.host[: len(shape)])}"


def _gpus() -> list[str]:
    return [name for name in CHIPS if name not in topologies.GENERATIONS]
