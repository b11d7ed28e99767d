"""Kills at random moments, on changing numbers of devices and processes, change nothing."""

import re
import subprocess
import sys

import pytest

from tests.run_main import ROOT, TINY, environment


def torture(tmp_path, *flags):
    """Kills a run again and again; returns what is printed."""
    command = [sys.executable, "benchmarks/torture.py", f"--workdir={tmp_path}", *flags]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every step once, in metrics.jsonl and in TensorBoard" in done.stdout
    return done.stdout


@pytest.mark.slow
def test_kills_change_nothing(tmp_path):
    """One on each number of devices and processes."""
    printed = torture(tmp_path, f"--config={TINY}", "--kills=5", "--steps_between=6")
    assert printed.count("\nkill ") == 5


@pytest.mark.slow
def test_kills_between_stages_change_nothing(tmp_path):
    """To the last digit, since the number of devices stays."""
    flags = "--config=benchmarks/staged_config.py:2", "--kills=4", "--steps_between=10"
    printed = torture(tmp_path, *flags, "--devices=1")
    assert re.search(r"kill +\d+: boundary", printed)
    assert "largest relative difference of a loss: 0.0e+00" in printed
