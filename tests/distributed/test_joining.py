"""How a process finds the others, and that it does not overlook them."""

import subprocess
import sys

import pytest

from big_align.distributed import processes
from big_align.errors import UserError
from tests.run_main import ROOT, environment, find_port

JOINED = """
import jax
from big_align.distributed import processes

processes.join_processes()
print(jax.process_index(), jax.process_count(), jax.config._read("jax_cuda_visible_devices"))
"""


def rank(number: int, count: int) -> dict[str, str]:
    """What mpirun of Open MPI 5 tells a process on one host."""
    return {
        "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
    }


@pytest.mark.slow
def test_processes_of_open_mpi_5_find_each_other_and_take_a_gpu_each():
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{find_port()}"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOINED],
            cwd=ROOT,
            env=environment(devices=1) | address | rank(number, 2),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        assert [p.communicate(timeout=120)[0] for p in started] == ["0 2 0\n", "1 2 1\n"]
    finally:
        for process in started:
            process.kill()


def test_open_mpi_5_has_to_be_told_where_process_0_is(monkeypatch):
    for name, value in rank(1, 2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="--distributed: .* -x JAX_COORDINATOR_ADDRESS=HOST:PORT"):
        processes.join_processes()
