"""Kills at random moments, on changing numbers of devices and processes, change nothing."""

import subprocess
import sys

import pytest

from tests.run_main import ROOT, TINY, environment


@pytest.mark.slow
def test_kills_change_nothing(tmp_path):
    """One on each number of devices and processes."""
    command = [sys.executable, "benchmarks/torture.py", f"--workdir={tmp_path}"]
    command += [f"--config={TINY}", "--kills=5", "--steps_between=6"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nkill ") == 5
    assert "every step once, in metrics.jsonl and in TensorBoard" in done.stdout
