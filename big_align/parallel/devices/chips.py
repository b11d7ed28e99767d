"""The peak performance of accelerators: published numbers of TPUs and GPUs, in one table.

A JAX device is half a chip on TPU v2, v3 and TPU7x, where each core runs its own program, and a
whole chip on all others.

Sources:
  v2, v3: cloud.google.com/tpu/docs/v3 and .../v2; links: Jouppi et al. 2020, "A domain-specific
    supercomputer for training deep neural networks", and the v4 paper's table.
  v4: cloud.google.com/tpu/docs/v4; links: Jouppi et al. 2023, "TPU v4", 6 of 50 GB/s each way.
  v5e, v5p, v6e, TPU7x: docs.cloud.google.com/tpu/docs/v5e, v5p, v6e, tpu7x, and the table of
    docs.cloud.google.com/kubernetes-engine/docs/concepts/tpus. They give link speeds as the sum of
    both directions, half of which is for sending, and network speeds in bits per chip. The network
    of v2 to v4 is not published.
  A100, H100, H200, B200: NVIDIA's data sheets, without sparsity, NVLink as the sum of both
    directions, half of which is for sending; the network is that of a DGX: A100 with 8 adapters of
    200 Gbit/s, the others with 8 of 400.
"""

import dataclasses

GPU_FRACTION = 0.92  # of a GPU's memory; the rest is for libraries and communication


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator's published peaks; properties named `device_...` are per JAX device."""

    name: str
    kinds: tuple[str, ...]  # values of `jax.Device.device_kind` on it
    flops: float  # dense bfloat16 FLOP/s
    memory: int  # bytes of HBM
    memory_bandwidth: float  # bytes/s between HBM and the chip
    interconnect: float  # bytes/s that it can send over all its links, inside a slice or node
    network: float | None  # bytes/s from a host to other slices or nodes; None: not published
    chips_per_host: int  # that one process drives in a slice or node of several hosts
    devices_per_chip: int = 1
    float32: float | None = None  # FLOP/s of products in float32; None: six are one of bfloat16

    @property
    def device_flops(self) -> float:
        """Dense bfloat16 FLOP/s of one device."""
        return self.flops / self.devices_per_chip

    @property
    def device_float32_flops(self) -> float:
        """FLOP/s of one device for products whose factors keep all digits of float32."""
        return (self.float32 or self.flops / 6) / self.devices_per_chip

    @property
    def device_memory(self) -> int:
        """Bytes of HBM of one device."""
        return self.memory // self.devices_per_chip

    @property
    def usable_memory(self) -> int:
        """Bytes of HBM of one device that the arrays of a run can take."""
        fraction = GPU_FRACTION if any("NVIDIA" in kind for kind in self.kinds) else 1
        return int(self.device_memory * fraction)

    @property
    def device_memory_bandwidth(self) -> float:
        """Bytes/s between HBM and one device."""
        return self.memory_bandwidth / self.devices_per_chip

    @property
    def device_interconnect(self) -> float:
        """Bytes/s that one device can send inside a slice or node."""
        return self.interconnect / self.devices_per_chip

    @property
    def devices_per_host(self) -> int:
        """Devices that one process drives."""
        return self.chips_per_host * self.devices_per_chip


_GB, _GIB = 10**9, 2**30
_GBIT = 1e9 / 8

# fmt: off
_TABLE = (
    Chip("v2", ("TPU v2",), 45e12, 16 * _GIB, 700e9, 4 * 62e9, None, 4, 2),
    Chip("v3", ("TPU v3",), 123e12, 32 * _GIB, 900e9, 4 * 70e9, None, 4, 2),
    Chip("v4", ("TPU v4",), 275e12, 32 * _GIB, 1200e9, 6 * 50e9, None, 4),
    # Two adapters of 100 Gbit/s serve 8 chips, which are two hosts in larger slices.
    Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16 * _GIB, 819e9, 400e9 / 2, 100 * _GBIT, 4),
    Chip("v5p", ("TPU v5", "TPU v5p"), 459e12, 95 * _GIB, 2765e9, 1200e9 / 2, 4 * 50 * _GBIT, 4),
    Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 32 * _GIB, 1638e9, 800e9 / 2, 400 * _GBIT, 4),
    Chip("tpu7x", ("TPU7x",), 2307e12, 192 * _GIB, 7380e9, 1200e9 / 2, 4 * 100 * _GBIT, 4, 2),
    Chip("a100-40gb", ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
         312e12, 40 * _GB, 1555e9, 600e9 / 2, 8 * 200 * _GBIT, 8, 1, 19.5e12),
    Chip("a100", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
         312e12, 80 * _GB, 2039e9, 600e9 / 2, 8 * 200 * _GBIT, 8, 1, 19.5e12),
    Chip("h100", ("NVIDIA H100 80GB HBM3",),
         989e12, 80 * _GB, 3350e9, 900e9 / 2, 8 * 400 * _GBIT, 8, 1, 67e12),
    Chip("h200", ("NVIDIA H200",),
         989e12, 141 * _GB, 4800e9, 900e9 / 2, 8 * 400 * _GBIT, 8, 1, 67e12),
    Chip("b200", ("NVIDIA B200",),
         2250e12, 180 * _GB, 8000e9, 1800e9 / 2, 8 * 400 * _GBIT, 8, 1, 75e12),
)
# fmt: on
CHIPS = {chip.name: chip for chip in _TABLE}
"""The chips by name."""


def find_chip(device_kind: str) -> Chip | None:
    """Returns the chip with this device kind, None if it is not in the table.

    Kinds must match exactly: other boards and partitions of a GPU have other peaks.
    """
    return next((chip for chip in CHIPS.values() if device_kind in chip.kinds), None)
