"""A save of several processes: all learn of its end, whoever could not write, and in any case."""

import itertools
import threading
import time

import jax
import pytest
from etils import epath

from big_align.training.saving import rounds, step_folders
from tests.two_processes import run_both

FAULT = OSError(5, "Input/output error")
PROCESSES = [(count, faulty) for count in (2, 4) for faulty in range(count)]
WRITING, COMPLETING, PROBING = range(3)


class Saving:
    """One save, of which every process writes its part."""

    def __init__(self, folder, faults=(), late=(), deadline=60):
        self.folder, self.faults, self.late = epath.Path(folder), faults, late
        self.deadline = deadline
        self.written, self.completed = set(), []
        self.over = threading.Event()

    def save(self, process):
        """Does what `Checkpointer` does; returns the fault that this process knows of."""
        attempt = rounds.Round(self.folder, 7, self.deadline)
        if (process, PROBING) in self.late:
            self.over.wait()
        if fault := attempt.probe():
            return fault
        attempt.follow(lambda: self._write(attempt, process))
        return attempt.wait()

    def _write(self, attempt, process):
        if (process, WRITING) in self.late:
            self.over.wait()
        time.sleep(0.02 * process)
        if (process, WRITING) in self.faults:
            raise FAULT
        self.written.add(process)
        if process == 0:
            attempt.wait_for_others()
            self.completed.append(set(self.written))
            if (process, COMPLETING) in self.faults:
                raise FAULT


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_checkpoint_is_complete_when_all_have_written(count, tmp_path, monkeypatch):
    saving = Saving(tmp_path)
    assert run_both(monkeypatch, saving.save, count) == [None] * count
    assert saving.completed == [set(range(count))]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count, faulty", PROCESSES)
def test_a_fault_of_one_process_is_that_of_all(count, faulty, tmp_path, monkeypatch):
    (tmp_path / "7.orbax-checkpoint-tmp").mkdir()
    saving = Saving(tmp_path, {(faulty, WRITING)})
    expected = (faulty, "Input/output error")
    assert run_both(monkeypatch, saving.save, count) == [expected] * count
    assert not saving.completed and list(tmp_path.iterdir()) == []


def test_what_is_not_completed_is_saved_nowhere(tmp_path, monkeypatch):
    saving = Saving(tmp_path, {(0, COMPLETING)})
    assert run_both(monkeypatch, saving.save, 4) == [(0, "Input/output error")] * 4


@pytest.mark.parametrize("count, faulty", PROCESSES)
def test_nothing_begins_where_one_cannot_write(count, faulty, tmp_path, monkeypatch):
    def try_writing(folder, process):
        return "Stale file handle" * (process == faulty)

    monkeypatch.setattr(step_folders, "try_writing", try_writing)
    saving = Saving(tmp_path)
    assert run_both(monkeypatch, saving.save, count) == [(faulty, "Stale file handle")] * count
    assert not saving.written


def test_a_fault_leaves_the_next_save_alone(tmp_path, monkeypatch):
    savings = [Saving(tmp_path, {(1, WRITING)} if n == 1 else ()) for n in range(5)]
    outcomes = run_both(monkeypatch, lambda process: [each.save(process) for each in savings], 3)
    fault = (1, "Input/output error")
    assert outcomes == [[None, fault, None, None, None]] * 3


@pytest.mark.parametrize("stage", [WRITING, PROBING])
@pytest.mark.parametrize("count, late", PROCESSES)
def test_the_deadline_names_who_is_late(count, late, stage, tmp_path, monkeypatch):
    saving, said = Saving(tmp_path, late={(late, stage)}, deadline=1), []

    def end(error):
        said.append(str(error))
        if len(said) == count:
            saving.over.set()
        raise SystemExit

    monkeypatch.setattr(rounds.processes, "fail", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    run_both(monkeypatch, saving.save, count)
    assert (
        said
        == [
            f"process {late} did not finish saving step 7 to {tmp_path} within 1 s "
            "(config.checkpoint.deadline)"
        ]
        * count
    )


def test_a_probe_tells_what_a_file_system_says(tmp_path):
    assert step_folders.try_writing(epath.Path(tmp_path), 3) == ""
    (tmp_path / "file").touch()
    reason = step_folders.try_writing(epath.Path(tmp_path / "file"), 3)
    assert reason == "Not a directory"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_message_is_sent_again(lost, monkeypatch):
    monkeypatch.setattr(rounds, "RETRY_SECONDS", 0)
    answers = itertools.chain([jax.errors.JaxRuntimeError("UNAVAILABLE")] * lost, ["told"])

    def call():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert rounds._insist(call) == "told"


def test_a_full_disk_is_found_by_the_probe():
    """Where the device takes no byte, a file is opened, and its first bytes are refused."""

    class Full(type(epath.Path())):
        def write_bytes(self, data):
            return epath.Path("/dev/full").write_bytes(data)

    assert step_folders.try_writing(Full("folder"), 0) == "No space left on device"
