"""What a full disk or a folder that nobody may write does to a run: nothing that lasts."""

import contextlib
import os
import pathlib
import subprocess
import time

import pytest

from big_align.config.overrides import load_config
from big_align.runs import evaluate
from tests.run_main import TINY, Run, read_losses

pytestmark = pytest.mark.slow

FLAGS = ("--config.total_steps=60", "--config.checkpoint.every=4", "--config.evaluators={}")


def call(*command: str | pathlib.Path) -> None:
    """Runs a command that needs rights, or skips the test."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        pytest.skip(f"{command[0]} does not work here: {str(reason).strip()}")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 6 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    call("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of a run with a disk that has room."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    run = Run(workdir, *FLAGS, devices=1)
    assert run.wait() == 0, run.err
    return read_losses(workdir)


def fill(disk: pathlib.Path) -> pathlib.Path:
    """Leaves no byte of a disk."""
    path = disk / "filler"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
    return path


def list_saved(workdir: pathlib.Path) -> set[int]:
    """The steps of complete checkpoints."""
    done = [path.parent.name for path in workdir.glob("checkpoints/[0-9]*/commit_success.txt")]
    return {int(name) for name in done if name.isdecimal()}  # the others are not renamed yet


def wait_for_save(run: Run) -> None:
    while not list_saved(run.workdir):
        assert run.is_running, run.err
        time.sleep(0.01)


def test_a_disk_that_fills_up_stops_a_run_that_more_space_continues(small_disk, undisturbed):
    workdir = small_disk / "run"
    run = Run(workdir, *FLAGS, devices=1)
    wait_for_save(run)
    filler = fill(small_disk)
    assert run.wait() == 1
    # Whatever is written first meets the disk: a checkpoint, which is tried again, or a metric.
    (error,) = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert "No space left on device" in error and str(workdir) in error, run.err
    assert "Traceback" not in run.err
    assert list_saved(workdir)
    filler.unlink()
    again = Run(workdir, *FLAGS, devices=1)
    assert again.wait() == 0, again.err
    assert read_losses(workdir) == undisturbed


def test_a_folder_that_cannot_be_written_is_a_line_before_the_first_step(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    call("chattr", "+i", workdir)
    try:
        run = Run(workdir, *FLAGS, devices=1)
        assert run.wait() == 1
        assert list(workdir.iterdir()) == []
    finally:
        subprocess.run(["chattr", "-i", workdir], check=True)
    assert run.err.strip().splitlines()[-1].startswith(f"error: {workdir}")
    assert "Traceback" not in run.err and "step/s" not in run.err


def test_checkpoints_that_cannot_be_written_are_told_and_those_there_stay(tmp_path, undisturbed):
    run = Run(tmp_path, *FLAGS, devices=1)
    wait_for_save(run)
    call("chattr", "+i", tmp_path / "checkpoints")
    try:
        assert run.wait() == 1
        kept = list_saved(tmp_path)
    finally:
        subprocess.run(["chattr", "-i", tmp_path / "checkpoints"], check=True)
    error = run.err.strip().splitlines()[-1]
    assert kept and f"the newest is of step {max(kept)}" in error and "Traceback" not in run.err
    again = Run(tmp_path, *FLAGS, devices=1)
    assert again.wait() == 0, again.err
    assert read_losses(tmp_path) == undisturbed


@pytest.mark.parametrize("step", [4, 0])
def test_an_evaluation_that_cannot_be_recorded_is_printed(tmp_path, monkeypatch, capsys, step):
    """The numbers took hours; where they cannot be written, one line says so."""
    monkeypatch.setattr(evaluate, "load_embedder", lambda *_: (None, step))
    monkeypatch.setattr(evaluate, "evaluate_all", lambda *_: {"own/r1": 0.5})
    record = tmp_path / "evaluations.jsonl"
    record.mkdir()
    assert evaluate.run(load_config(TINY), str(tmp_path)) == {"own/r1": 0.5}
    out, err = capsys.readouterr()
    where = f"{tmp_path} at step 4" if step else "the weights of config.init"
    assert out == f"{where}\n  own/r1    0.5000\n"
    fault = f"{record} is a folder, not a file"
    assert err == f"warning: {record}: the evaluation is not recorded ({fault})\n"
