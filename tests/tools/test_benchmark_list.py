"""The list of data sets and suites, whole and cut off by who reads it."""

import subprocess
import sys

import pytest

from big_align.benchmarks import catalog
from big_align.tools import benchmark
from tests.run_main import ROOT


def test_every_name_is_listed_once(capsys):
    assert benchmark.main(["--list"]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert first == ["suites:", *catalog.suites(), "data", *catalog.names()]


def test_empty_names_are_left_out():
    assert benchmark.read_names("cifar10, ,mnist,") == ["cifar10", "mnist"]


@pytest.mark.slow
def test_a_reader_may_leave_before_the_end():
    command = [sys.executable, "-m", "big_align.tools.benchmark", "--list"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as listing:
        listing.stdout.close()
        error = listing.stderr.read()
    assert listing.returncode == 0 and error == ""
