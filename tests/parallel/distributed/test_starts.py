"""A request to stop means the same from the first instruction of a program to its last."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from big_align.core.errors import Stopped
from tests.console_command import write_command
from tests.run_main import ROOT, TINY, environment, find_port

SIGNALS = [signal.SIGTERM, signal.SIGINT]


def answers(process, _):
    """Whether the program's first instruction has run: it holds SIGTERM back, or has a handler."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk", "SigCgt"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def has_imported(name):
    return lambda process, _: name in pathlib.Path(f"/proc/{process.pid}/maps").read_text()


def has_written(name):
    return lambda _, workdir: (workdir / name).exists()


def has_waited(process, workdir):
    """Whether it waits for others that never come: it has imported JAX, four seconds ago."""
    if not has_imported("jaxlib")(process, workdir):
        return False
    time.sleep(4)
    return True


@contextlib.contextmanager
def start(tmp_path, command=("main.py",), **variables):
    """Starts a run in a process of its own; gives it and the file of its output."""
    words = [*command, f"--config={TINY}", f"--workdir={tmp_path / 'run'}"]
    words += ["--config.evaluators={}", "--config.total_steps=100000"]
    words += ["--distributed"] if variables else []
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(1) | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(reached, process, workdir, seconds=120):
    end = time.monotonic() + seconds
    while not reached(process, workdir):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)


def ask(process, number, tmp_path):
    """Asks a process to stop; checks how it does."""
    process.send_signal(number)
    assert process.wait(60) == Stopped.STATUS == os.EX_TEMPFAIL
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text and "stopped on request" in text, text


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", [["main.py"], ["-m", "big_align"], ["big-align", "train"]])
def test_a_request_at_the_first_instruction_is_answered(command, number, tmp_path):
    """Also while the program executes itself again, which takes any handlers away."""
    if command[0] == "big-align":
        command = [str(write_command(tmp_path)), *command[1:]]
    with start(tmp_path, command) as process:
        wait_for(answers, process, tmp_path / "run")
        ask(process, number, tmp_path)


MOMENTS = {
    "importing NumPy": has_imported("_multiarray_umath"),
    "importing JAX": has_imported("jaxlib"),
    "owning the workdir": has_written("owner.json"),
    "about to compile": has_written("config.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_request_is_answered_at_every_moment_of_a_start(moment, number, tmp_path):
    with start(tmp_path) as process:
        wait_for(MOMENTS[moment], process, tmp_path / "run")
        ask(process, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("own", ["0", "1"])
def test_a_process_that_waits_for_the_others_answers(own, number, tmp_path):
    numbers = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": own}
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{find_port()}"}
    with start(tmp_path, **numbers, **address) as process:
        wait_for(has_waited, process, tmp_path / "run")
        ask(process, number, tmp_path)


@pytest.mark.slow
def test_one_more_ctrl_c_after_all_is_saved_changes_nothing(tmp_path):
    with start(tmp_path) as process:
        wait_for(has_written("metrics.jsonl"), process, tmp_path / "run")
        process.send_signal(signal.SIGINT)
        wait_for(lambda *_: not (tmp_path / "run/owner.json").exists(), process, tmp_path / "run")
        ask(process, signal.SIGINT, tmp_path)
        assert list((tmp_path / "run/checkpoints").glob("[0-9]*"))
