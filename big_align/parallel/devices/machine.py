"""What kind of machine this is, found without starting JAX, which may have to join others first."""

import glob
import importlib.metadata
import os

DEVICES = {
    "gpu": ("/dev/nvidia[0-9]*", "/dev/kfd"),
    "tpu": ("/dev/accel*", "/dev/vfio/[0-9]*"),
}
"""The files that drivers make for devices."""
PLUGINS = {"gpu": ("cuda", "rocm"), "tpu": ("tpu",)}
"""Parts of the names by which JAX's packages for devices are known."""
SEVERAL = ("JAX_NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_NODES")
HOSTS = "TPU_WORKER_HOSTNAMES"


def find_accelerator() -> str | None:
    """Returns "gpu" or "tpu" if JAX will run on one, else None: there is a device and a plugin."""
    wanted = os.environ.get("JAX_PLATFORMS", "").lower()
    if wanted.startswith("cpu"):
        return None
    installed = {point.name for point in importlib.metadata.entry_points(group="jax_plugins")}
    if _has_package("libtpu"):  # JAX has its own plugin for it
        installed.add("tpu")
    for kind, names in PLUGINS.items():
        found = any(name in plugin for plugin in installed for name in names)
        if found and any(map(glob.glob, DEVICES[kind])):
            return kind
    return None


def is_one_of_several() -> bool:
    """Returns whether this is one of several processes of a launcher, or hosts of a slice."""
    counts = [os.environ.get(name, "") for name in SEVERAL]
    return any(n.isdecimal() and int(n) > 1 for n in counts) or "," in os.environ.get(HOSTS, "")


def _has_package(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
