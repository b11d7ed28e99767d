"""How a process finds the others, and that it does not overlook them."""

import subprocess
import sys

import pytest

from big_align.core.errors import Stopped, UserError
from big_align.parallel.distributed import processes
from tests.forked_programs import forking_python
from tests.run_main import ROOT, TINY, environment, find_port

JOINED = """
import jax
from big_align.parallel.distributed import processes

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


WAITING = """
import time
from big_align.parallel.distributed import processes

processes.join_processes(takes_requests=%s)
print("joined", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("takes_requests", [False, True])
def test_sigterm_ends_all_processes_unless_the_program_takes_requests(takes_requests):
    """`embed --distributed` went on for as long as it had images, whoever asked it to stop."""
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{find_port()}"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING % takes_requests],
            cwd=ROOT,
            env=environment(devices=1) | address | rank(number, 2),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in started] == ["joined\n"] * 2
        started[1].terminate()
        if takes_requests:
            with pytest.raises(subprocess.TimeoutExpired):
                started[1].wait(3)
        else:
            ends = [process.communicate(timeout=30)[1] for process in started]
            assert [end.splitlines()[-1] for end in ends] == ["stopped on request of process 1"] * 2
            assert [process.returncode for process in started] == [Stopped.STATUS] * 2
    finally:
        for process in started:
            process.kill()


def test_open_mpi_5_has_to_be_told_where_process_0_is(monkeypatch):
    for name, value in rank(1, 2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="--distributed: .* -x JAX_COORDINATOR_ADDRESS=HOST:PORT"):
        processes.join_processes()


def test_a_host_whose_own_name_is_unknown_is_named_before_gloo_fails(monkeypatch):
    processes._check_own_name()
    monkeypatch.setattr(processes.socket, "gethostname", lambda: "nosuch.invalid")
    with pytest.raises(UserError, match="name of this host, nosuch.invalid, does not resolve"):
        processes._check_own_name()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts main.py as a launcher does, with a config that no run accepts."""
    folder, variables = tmp_path_factory.mktemp("start"), environment(devices=1)
    with forking_python(folder / "bin", variables) as python:

        def start(started: dict[str, str], *flags: str) -> subprocess.CompletedProcess:
            command = [python, "main.py", f"--config={TINY}", f"--workdir={folder}/run", REFUSED]
            return subprocess.run(
                [*command, *flags],
                cwd=ROOT, env=variables | started, capture_output=True, text=True,
            )  # fmt: skip

        yield start


REFUSED = "--config.batch_size=0"
STEP = {"SLURM_NTASKS": "8", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "started, named",
    [
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES=2"),
        (rank(3, 4), "OMPI_COMM_WORLD_SIZE=4"),
        (STEP, "SLURM_STEP_NUM_TASKS=8"),
    ],
)
def test_one_of_several_processes_is_a_run_of_its_own_only_if_told(start, started, named):
    ended, number = start(started), named.partition("=")[2]
    assert ended.returncode == 2  # starting again is of no use
    assert ended.stderr == (
        f"error: {number} processes were started ({named}): add --distributed, or "
        f"--nodistributed for {number} runs of their own\n"
    )
    assert "config.batch_size = 0" in start(started, "--nodistributed").stderr


@pytest.mark.slow
@pytest.mark.parametrize("started", [rank(0, 1), {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}])
def test_a_process_of_its_own_and_a_batch_script_of_slurm_are_alone(start, started):
    assert "config.batch_size = 0" in start(started).stderr
