"""Open MPI starts processes and JAX finds them; docs/scale/launchers.md says how on several."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.run_main import ROOT, TINY, Run, environment, read_losses

STEPS = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun: apt-get install openmpi-bin"),
]


def start(workdir, flags):
    options = ["-np", "2", "--oversubscribe"] + ["--allow-run-as-root"] * (os.getuid() == 0)
    command = [sys.executable, "main.py", "--distributed", f"--config={TINY}"]
    return subprocess.Popen(
        ["mpirun", *options, *command, f"--workdir={workdir}", *flags],
        cwd=ROOT,
        env=environment(devices=2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def find_processes(launcher: int) -> list[int]:
    """The processes that mpirun has started."""
    done = subprocess.run(["pgrep", "-P", str(launcher)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def test_mpirun_passes_on_that_a_run_stopped_and_continues_it(tmp_path):
    flags = (f"--config.total_steps={STEPS}", "--config.evaluators={}")
    workdir = tmp_path / "mpirun"
    process = start(workdir, flags)
    while not read_losses(workdir):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    # One process is enough: they agree on the step. mpirun itself would leave them one second.
    os.kill(find_processes(process.pid)[1], signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 75, out
    assert 0 < read_losses(workdir)[-1][0] < STEPS

    process = start(workdir, flags)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    uninterrupted = Run(tmp_path / "local", *flags, devices=4, processes=2)
    assert uninterrupted.wait() == 0, uninterrupted.err
    np.testing.assert_allclose(read_losses(workdir), read_losses(uninterrupted.workdir), rtol=1e-5)
