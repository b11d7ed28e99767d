"""The kind of a machine is found by its devices and packages, and JAX is not started for it."""

import glob
import importlib.metadata
import os
import subprocess
import sys
import types

import pytest

from big_align.parallel.devices import machine

GPU, TPU = "/dev/nvidia0", "/dev/vfio/0"


@pytest.fixture
def pretend(monkeypatch):
    """Makes a machine with these files of devices and plugins of JAX."""

    def make(files=(), plugins=(), libtpu=False, **variables):
        points = [types.SimpleNamespace(name=name) for name in plugins]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
        monkeypatch.setattr(machine, "_has_package", lambda name: libtpu)
        found = lambda pattern: [f for f in files if glob.fnmatch.fnmatch(f, pattern)]  # noqa: E731
        monkeypatch.setattr(glob, "glob", found)
        for name in ("JAX_PLATFORMS", *machine.SEVERAL, machine.HOSTS):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return make


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"files": [GPU]}, None),  # JAX would run on the CPU
        ({"plugins": ["xla_cuda12"]}, None),  # as in a container without devices
        ({"files": [GPU], "plugins": ["xla_cuda12"]}, "gpu"),
        ({"files": ["/dev/kfd"], "plugins": ["xla_rocm60"]}, "gpu"),
        ({"files": [GPU], "plugins": ["xla_cuda12"], "JAX_PLATFORMS": "cpu"}, None),
        ({"files": [GPU], "plugins": ["xla_cuda12"], "JAX_PLATFORMS": "cuda,cpu"}, "gpu"),
        ({"files": [TPU]}, None),
        ({"files": [TPU], "libtpu": True}, "tpu"),
        ({"libtpu": True}, None),  # as on a laptop that makes plans
    ],
)
def test_a_device_counts_where_jax_has_its_plugin(given, expected, pretend):
    pretend(**given)
    assert machine.find_accelerator() == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"SLURM_STEP_NUM_NODES": "1"}, False),
        ({"SLURM_STEP_NUM_NODES": "2"}, True),
        ({"JAX_NUM_PROCESSES": "8"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, True),
    ],
)
def test_launchers_and_slices_say_that_there_are_several(variables, expected, pretend):
    pretend(**variables)
    assert machine.is_one_of_several() == expected


def test_jax_is_not_started():
    """A process that joins others has to do so before."""
    code = "import sys; from big_align.parallel.devices import machine; machine.find_accelerator()"
    code += "; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
