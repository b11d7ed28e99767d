"""What XLA is told in tests, which compile much and run little: virtual devices, and less work."""

import importlib.metadata


def list_flags(devices: int) -> dict[str, str]:
    """Returns flags of XLA by name, for so many virtual CPU devices."""
    flags = {
        "--xla_force_host_platform_device_count": str(devices),
        # A run of a test compiles for longer than it computes; these make it a tenth.
        "--xla_backend_optimization_level": "0",
        # Programs are small: parts that are compiled side by side cost more than they save.
        "--xla_cpu_parallel_codegen_split_count": "1",
    }
    # A flag that XLA does not know ends the process; jaxlib 0.11 has one kind of emitters alone.
    if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        flags["--xla_cpu_use_fusion_emitters"] = "false"
    return flags
