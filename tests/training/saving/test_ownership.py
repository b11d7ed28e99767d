"""A folder has one owner: whoever is there stays, whoever is gone is replaced."""

import json
import multiprocessing
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import types

import pytest
from etils import epath

from big_align.core.errors import UserError
from big_align.training.saving import ownership
from big_align.training.saving.ownership import FILE, own
from tests.two_processes import run_both

HOLD = """
import sys, time
from big_align.training.saving.ownership import own
with own(sys.argv[1]):
    print("mine", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold(tmp_path):
    """Starts another process that owns a folder."""
    started = []

    def start(folder):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "mine\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(ownership, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(ownership, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(ownership, "SETTLE_SECONDS", 0.05)


def read(folder):
    return json.loads((folder / FILE).read_text())


def leave(folder, **changes):
    """Leaves the file of an owner that is like this process but for some facts."""
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(ownership._describe_me() | changes))


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, hold):
    first = hold(tmp_path)
    with pytest.raises(UserError, match=rf"{tmp_path} belongs to .* \(process {first.pid} on "):
        with own(tmp_path):
            pass
    assert read(tmp_path)["pid"] == first.pid
    first.kill()  # it cannot clean up
    first.wait()
    start = time.monotonic()
    with own(tmp_path):
        assert read(tmp_path)["pid"] == os.getpid()
    assert time.monotonic() < start + ownership.SILENT_SECONDS / 2  # no waiting on one machine
    assert not (tmp_path / FILE).exists()


def test_the_number_of_a_process_that_is_gone_may_be_another_processes_now(tmp_path):
    leave(tmp_path, started="12345")  # this process has the number, and was started later
    with own(tmp_path):
        pass
    leave(tmp_path)
    with pytest.raises(UserError, match="belongs to another run"):
        with own(tmp_path):
            pass


@pytest.mark.parametrize("changes", [{"host": "far"}, {"boot": "earlier"}, {"namespace": "box"}])
def test_another_machine_is_gone_once_it_is_silent(tmp_path, impatient, changes, capsys):
    leave(tmp_path, pid=1, **changes)
    with own(tmp_path):
        assert read(tmp_path)["pid"] == os.getpid()
    assert "waiting up to 0 s to see if a run on" in capsys.readouterr().out


@pytest.mark.parametrize("back", [0, 10**6], ids=["", "with its clock set back"])
def test_another_machine_that_touches_its_file_is_there(tmp_path, impatient, back):
    leave(tmp_path, host="far")
    done = threading.Event()

    def touch():
        while not done.wait(0.1):
            now = time.time() - back
            os.utime(tmp_path / FILE, (now, now))

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(UserError, match=r"on far, since"):
            with own(tmp_path):
                pass
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("text", ["", '{"host": "he', "[1]", "\xff"])
def test_half_a_file_is_no_owner(tmp_path, impatient, text):
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    with own(tmp_path):
        assert read(tmp_path)["pid"] == os.getpid()


def test_a_copy_of_an_owned_folder_is_free_and_the_original_is_not(tmp_path, impatient):
    original, copy = tmp_path / "run", tmp_path / "copy"
    with own(original):
        shutil.copytree(original, copy)
        with own(copy):
            assert read(copy)["token"] != read(original)["token"]
        with pytest.raises(UserError, match="run belongs to another run"):
            with own(original):
                pass
        assert read(original)["pid"] == os.getpid() and not (copy / FILE).exists()


def test_a_file_that_gets_another_place_is_no_copy_while_it_is_touched(
    tmp_path, impatient, monkeypatch
):
    """Network file systems may number a file anew."""
    with own(tmp_path):
        monkeypatch.setattr(ownership, "_find_place", lambda file: "another")
        with pytest.raises(UserError, match="belongs to another run"):
            with own(tmp_path):
                pass


def test_an_owner_that_was_replaced_while_it_slept_leaves(tmp_path):
    code = f"from big_align.training.saving import ownership as o\no.BEAT_SECONDS = 0.05\n{HOLD}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "mine\n"
    leave(tmp_path, host="far")
    assert process.wait(timeout=30) == 1
    assert "belongs to another run" in process.stderr.read()
    assert read(tmp_path)["host"] == "far"


def test_the_file_is_touched_and_made_again(tmp_path, impatient):
    with own(tmp_path):
        stamp = ownership._stamp(epath.Path(tmp_path / FILE))
        time.sleep(0.3)
        assert ownership._stamp(epath.Path(tmp_path / FILE)) != stamp
        (tmp_path / FILE).unlink()
        time.sleep(0.3)
        assert read(tmp_path)["pid"] == os.getpid()


def test_a_folder_that_nothing_came_into_goes_again(tmp_path):
    with own(tmp_path / "empty"), own(tmp_path / "used"):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_all_folders_are_owned_and_none_after_a_refusal(tmp_path):
    workdir, checkpoints = tmp_path / "run", tmp_path / "bucket"
    with own(workdir, checkpoints):
        with pytest.raises(UserError, match="bucket belongs to another run"):
            with own(tmp_path / "other", checkpoints):
                pass
        assert not (tmp_path / "other").exists()
    assert not workdir.exists()


@pytest.mark.parametrize("kind", ["file", "forbidden"])
def test_what_cannot_be_written_is_named(tmp_path, kind):
    folder = tmp_path / kind / "run"
    if kind == "file":
        folder.parent.touch()
    elif os.getuid() == 0:
        folder = pathlib.Path("/proc/run")  # where root cannot write either
    else:
        folder.parent.mkdir(mode=0o500)
    with pytest.raises(UserError, match=str(folder)):
        with own(folder):
            pass


def test_one_who_is_slow_to_take_a_folder_does_not_take_it_from_the_next_owner(
    tmp_path, impatient, monkeypatch
):
    leave(tmp_path, started="12345")
    lives, others = ownership._lives, []

    def judge_slowly(path):
        gone = not lives(path)
        if not others:  # between the judgment and what follows from it another comes and stays
            others.append(own(tmp_path))
            others[0].__enter__()
        return not gone

    monkeypatch.setattr(ownership, "_lives", judge_slowly)
    try:
        with pytest.raises(UserError, match="belongs to another run"):
            with own(tmp_path):
                pytest.fail("two own the folder")
        assert read(tmp_path)["pid"] == os.getpid()
    finally:
        others[0].__exit__(None, None, None)
    assert not (tmp_path / FILE).exists()


def _race(folder, barrier, results, over):
    barrier.wait()
    try:
        with own(folder):
            results.put(os.getpid())
            assert over.wait(120)  # who comes late must find it taken, however slow it is
    except UserError:
        results.put(None)


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
def test_of_many_at_once_one_gets_it(tmp_path, stale):
    if stale:
        leave(tmp_path, started="12345")
    context = multiprocessing.get_context("spawn")
    barrier, results, over = context.Barrier(6), context.Queue(), context.Event()
    given = tmp_path, barrier, results, over
    racers = [context.Process(target=_race, args=given) for _ in range(6)]
    for racer in racers:
        racer.start()
    got = [results.get(timeout=120) for _ in racers]
    over.set()
    for racer in racers:
        racer.join()
    assert sum(pid is not None for pid in got) == 1


def test_an_error_of_a_bucket_ends_no_beat(tmp_path, impatient, monkeypatch):
    class Unavailable(Exception):
        """Of TensorFlow, and no OSError."""

    inner, failures = ownership._read, iter([True, True])

    def read_or_fail(path):
        if threading.current_thread().name == "owner" and next(failures, False):
            raise Unavailable("503")
        return inner(path)

    monkeypatch.setattr(ownership, "_read", read_or_fail)
    with own(tmp_path / "run"):
        path = tmp_path / "run" / FILE
        before, until = path.stat().st_mtime_ns, time.monotonic() + 10
        while path.stat().st_mtime_ns == before:
            assert time.monotonic() < until
            time.sleep(0.02)
    assert next(failures, None) is None

    def refuse(path, me):
        raise Unavailable("no such bucket")

    monkeypatch.setattr(ownership, "_take", refuse)
    with pytest.raises(UserError, match="the run cannot write there .*no such bucket"):
        with own(tmp_path / "run"):
            pass


def test_a_folder_that_another_process_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ownership, "SEEN_SECONDS", 0.3)
    state = types.SimpleNamespace(process_id=0, num_processes=2)
    monkeypatch.setattr(ownership.processes, "coordination", lambda: state)
    told = {"share": lambda topic, value: value, "gather": lambda topic, value: [value, value]}
    monkeypatch.setattr(ownership, "agreement", types.SimpleNamespace(**told))
    run = tmp_path / "run"
    with own(run, shared=[run]):
        pass
    monkeypatch.setattr(ownership.agreement, "gather", lambda topic, value: [value, False])
    with pytest.raises(UserError, match="run: process 1 does not see what process 0 writes there"):
        with own(run, shared=[run]):
            pass
    # Process 1 is told the token, and finds no such file, or that of another run.
    state.process_id = 1
    sees = lambda topic, value: [topic.startswith("sees") or "", value]  # noqa: E731
    monkeypatch.setattr(ownership.agreement, "gather", sees)
    share = lambda topic, value: [None, {str(run): "the token"}]  # noqa: E731
    monkeypatch.setattr(ownership.agreement, "share", share)
    for content in ("", '{"token": "another"}', '{"token": "the token"}'):
        if content:
            run.mkdir(exist_ok=True)
            (run / FILE).write_text(content)
        if "the token" in content:
            with own(run, shared=[run]):
                break
        with pytest.raises(UserError, match="run: process 1 does not see"):
            with own(run, shared=[run]):
                pass


@pytest.mark.parametrize("blocked", range(4))
def test_a_folder_that_one_process_cannot_write_is_refused_in_all(blocked, tmp_path, monkeypatch):
    """Root may write anywhere: as /proc refuses files even to it, so does this folder."""
    try_writing, run = ownership.step_folders.try_writing, tmp_path / "run"

    def refuse(folder, process):
        return try_writing(epath.Path("/proc") if process == blocked else folder, process)

    monkeypatch.setattr(ownership.step_folders, "try_writing", refuse)

    def begin(_):
        with own(run, shared=[run]):
            return "begun"

    for outcome in run_both(monkeypatch, begin, count=4):
        assert re.fullmatch(rf"process {blocked} cannot write to {run} \(.+\)", str(outcome))
    assert not run.exists()


def test_a_folder_of_no_known_system_is_a_line(tmp_path):
    with pytest.raises(UserError, match="foo://x: the run cannot write there"):
        with own(tmp_path / "run", "foo://x"):
            pass
