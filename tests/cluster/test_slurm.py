"""A real Slurm of one node: a run is submitted once, stopped, requeued by itself, and finished.

slurm_cluster.sh says what it needs. `pytest -m slow -s tests/cluster/test_slurm.py` also prints the
transcript.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.run_main import ROOT, TINY, Run, environment, read_losses

CLUSTER = pathlib.Path(__file__).parent / "slurm_cluster.sh"
STEPS = 60

pytestmark = pytest.mark.slow


class Slurm:
    """The commands of a running cluster, echoed with what they print."""

    def __init__(self, folder: pathlib.Path):
        self._variables = environment(devices=2) | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Returns what a command prints."""
        print("$", *command)
        done = subprocess.run(
            command, cwd=ROOT, env=self._variables, check=True, capture_output=True, text=True
        )
        print(done.stdout, end="")
        return done.stdout

    def submit(self, log: pathlib.Path, *command: str) -> str:
        """Returns the number of a job with two tasks."""
        options = ["--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1"]
        options += ["--time=60", f"--output={log}"]
        return self.run("sbatch", *options, "launch/slurm.sh", *command).split()[-1]

    def describe(self, job: str) -> dict[str, str]:
        """What Slurm says of a job."""
        command = ["scontrol", "--oneliner", "show", "job", job]
        words = subprocess.check_output(command, env=self._variables, text=True).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, seconds: float = 300, **fields: str) -> None:
        """Returns when a job's fields have these values, and prints them."""
        end = time.monotonic() + seconds
        while not fields.items() <= (now := self.describe(job)).items():
            assert time.monotonic() < end, f"no {fields} after {seconds} s: {now}"
            assert now["JobState"] not in ("FAILED", "CANCELLED", "TIMEOUT"), now
            time.sleep(0.2)
        shown = {k: now[k] for k in ("JobState", "Restarts", "ExitCode")}
        print(f"  job {job}:", *(f"{k}={v}" for k, v in shown.items()))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if os.getuid() != 0:
        pytest.skip("only root starts a Slurm")
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        if not shutil.which(program):
            pytest.skip(f"no {program}: apt-get install slurmctld slurmd slurm-client munge")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([CLUSTER, "start", folder], check=True)
    yield Slurm(folder)
    subprocess.run([CLUSTER, "stop", folder], check=True)


def wait_for_step(workdir: pathlib.Path, step: int, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while (read_losses(workdir) or [(0, 0)])[-1][0] < step:
        assert time.monotonic() < end, f"no step {step} after {seconds} s"
        time.sleep(0.02)


def test_a_run_is_stopped_twice_requeued_by_itself_and_finished(slurm, tmp_path):
    flags = (f"--config.total_steps={STEPS}", "--config.evaluators={}")
    workdir, log = tmp_path / "slurm", tmp_path / "job.log"
    command = [sys.executable, "main.py", "--distributed", f"--config={TINY}"]
    job = slurm.submit(log, *command, f"--workdir={workdir}", *flags)
    for restarts, step in enumerate((10, 30), start=1):
        wait_for_step(workdir, step)
        slurm.run("scancel", "--signal=TERM", job)
        slurm.wait(job, Restarts=str(restarts))
    slurm.wait(job, JobState="COMPLETED", ExitCode="0:0", Restarts="2")
    text = log.read_text()
    print(re.sub(r".*(%\||Gloo).*\n", "", text.replace("\r", "\n")))  # without progress bars
    assert text.count("goes back to the queue") == 2
    assert text.count("stopped on request after step") == 2

    uninterrupted = Run(tmp_path / "local", *flags, devices=4, processes=2)
    assert uninterrupted.wait() == 0, uninterrupted.err
    losses = read_losses(workdir)
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(losses, read_losses(uninterrupted.workdir), rtol=1e-5)


def test_a_job_that_is_told_to_stop_as_it_starts_goes_back_to_the_queue(slurm, tmp_path):
    """While its tasks begin, import and join; a job that has failed would have lost its place."""
    command = [sys.executable, "main.py", "--distributed", f"--config={TINY}"]
    job = slurm.submit(tmp_path / "log", *command, f"--workdir={tmp_path / 'run'}")
    for restarts, seconds in enumerate((0.2, 2, 5), start=1):
        find = ["pgrep", "-f", f"^{sys.executable} main.py .*{tmp_path}"]
        while len(subprocess.run(find, capture_output=True).stdout.split()) < 2:
            time.sleep(0.05)
        time.sleep(seconds)
        slurm.run("scancel", "--signal=TERM", job)
        slurm.wait(job, Restarts=str(restarts))
    slurm.run("scancel", job)
    text = (tmp_path / "log").read_text()
    print(text)
    assert "Traceback" not in text and text.count("goes back to the queue") == 3


STANDS_IN = """
import os, pathlib, signal, sys, time
def stop(*_):
    time.sleep(float(os.environ["SLURM_PROCID"]))
    pathlib.Path(sys.argv[1], "saved" + os.environ["SLURM_PROCID"]).touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1], "up" + os.environ["SLURM_PROCID"]).touch()
time.sleep(0 if "SLURM_RESTART_COUNT" in os.environ else 200)
"""


def test_the_time_limit_signals_the_tasks_and_not_the_script(slurm, tmp_path):
    """And a task that needs a second longer than the other to leave has it."""
    job = slurm.submit(tmp_path / "log", sys.executable, "-c", STANDS_IN, str(tmp_path))
    slurm.wait(job, JobState="RUNNING")
    while not (tmp_path / "up1").exists():
        time.sleep(0.1)
    # Within the five minutes of --signal; slurmctld looks every half minute.
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=4")
    slurm.wait(job, Restarts="1")
    assert {path.name for path in tmp_path.glob("saved*")} == {"saved0", "saved1"}
    slurm.wait(job, JobState="COMPLETED", ExitCode="0:0", Restarts="1")


def test_a_run_that_fails_is_not_requeued(slurm, tmp_path):
    log = tmp_path / "log"
    command = "import os, sys, time; time.sleep(1); sys.exit(int(os.environ['SLURM_PROCID']) * 3)"
    job = slurm.submit(log, sys.executable, "-c", command)
    while (state := slurm.describe(job))["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
        time.sleep(0.2)
    assert (state["JobState"], state["Restarts"], state["ExitCode"]) == ("FAILED", "0", "3:0")
