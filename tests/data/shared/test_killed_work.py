"""Processes that are killed and stopped while they share work: nothing is lost, nothing is left."""

import re
import subprocess
import sys

import pytest

from tests.run_main import ROOT, environment


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["embed", "find_duplicates"])
def test_kills_and_stops_change_nothing(tmp_path, tool):
    command = [sys.executable, "benchmarks/elastic.py", f"--workdir={tmp_path}", f"--tool={tool}"]
    done = subprocess.run(
        [*command, "--kills=6", "--hosts=4"],
        cwd=ROOT, env=environment(1), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every file as of one process; each unit once, but for those lost" in done.stdout
    assert len(re.findall(r"is (killed|stopped), which has", done.stdout)) == 6
