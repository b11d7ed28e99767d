"""Work that processes share: a unit is done once, if no process is lost; nothing is left."""

import collections
import random
import threading

import pytest

from big_align.data.shared import leases, storage
from big_align.data.shared.shared_work import SharedWork, Unit
from tests.two_processes import run_together

COUNT = 12
UNITS = [Unit(f"u{n}", (f"u{n}.keys", f"u{n}.npy"), n + 1) for n in range(COUNT)]
WHOLE = sorted(name for unit in UNITS for name in unit.files)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(leases, "SECONDS", 0.4)


def write(folder, number):
    for name in UNITS[number].files:
        storage.write_bytes(storage.join(str(folder), name), name.encode())


def lose(work):
    """Ends a process as SIGKILL does: its leases stay, and are not renewed."""
    work._leases._over.set()
    work._bar.close()


def work_through(folder, done, **options):
    with SharedWork(folder, UNITS, "row", **options) as work:
        for number in work:
            write(folder, number)
            done.append(number)
            work.finish(number)
        return work.finished


def test_each_unit_is_done_once_and_all_end_when_all_is_done(folder):
    done = []
    assert all(run_together(lambda _: work_through(folder, done), 4))
    assert sorted(done) == list(range(COUNT))
    assert storage.list_names(folder) == WHOLE


def test_alone_the_order_is_that_of_the_list_and_what_is_there_stays(tmp_path):
    for number in (1, 7):
        write(tmp_path, number)
    (tmp_path / "u3.keys").write_bytes(b"half of a unit")
    done = []
    assert work_through(tmp_path, done)
    assert done == [n for n in range(COUNT) if n not in (1, 7)]
    assert work_through(tmp_path, done) and len(done) == COUNT - 2


def test_what_another_has_finished_since_the_last_look_is_not_taken(folder):
    one, other = SharedWork(folder, UNITS, "row"), SharedWork(folder, UNITS, "row")
    first = next(one.take())
    write(folder, first)
    one.finish(first)
    assert next(other.take()) != first and first in other.done
    one.close()
    other.close()


def test_what_lost_processes_had_is_done_by_others(folder, short):
    lost = [SharedWork(folder, UNITS, "row") for _ in range(3)]
    had = [next(work.take()) for work in lost]
    assert len(set(had)) == 3
    for work in lost:
        lose(work)
    done = []
    assert all(run_together(lambda _: work_through(folder, done, wait=False), 2))
    assert sorted(done) == list(range(COUNT))
    assert storage.list_names(folder) == WHOLE


def test_a_process_that_was_stopped_may_finish_what_another_has_done(tmp_path, short):
    """It writes the same bytes, and leaves nothing; nor does a third that is killed meanwhile."""
    stopped = SharedWork(tmp_path, UNITS, "row")
    number = next(stopped.take())
    lose(stopped)
    done = []
    assert work_through(tmp_path, done) and number in done
    write(tmp_path, number)
    stopped.finish(number)
    assert list(stopped) == [] and stopped.finished
    stopped.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: name.encode() for name in WHOLE
    }


def test_a_process_that_was_stopped_while_it_wrote_is_waited_for_by_nobody(tmp_path, short):
    stopped = SharedWork(tmp_path, UNITS, "row")
    number = next(stopped.take())
    lose(stopped)
    half = storage.open_whole(str(tmp_path / UNITS[number].files[0]))
    half.__enter__().write(b"half")
    done = []
    assert work_through(tmp_path, done)
    assert sorted(path.name for path in tmp_path.iterdir()) == WHOLE


def test_what_living_processes_have_is_left_to_them_or_waited_for(tmp_path, short, capsys):
    other, done = SharedWork(tmp_path, UNITS, "row"), []
    number = next(other.take())
    assert not work_through(tmp_path, done, wait=False)
    assert len(done) == COUNT - 1 and number not in done
    printed = capsys.readouterr().out
    assert "still has 1 of 12 parts; this process leaves the rest to others, and ends" in printed
    waiting = threading.Thread(target=work_through, args=(tmp_path, done))
    waiting.start()
    waiting.join(0.6)
    assert waiting.is_alive()
    write(tmp_path, number)
    other.finish(number)
    waiting.join(10)
    assert not waiting.is_alive() and len(done) == COUNT - 1
    assert capsys.readouterr().out.count("this process waits\n") == 1
    other.close()


def test_an_error_gives_its_units_back_at_once(tmp_path):
    def fail():
        with SharedWork(tmp_path, UNITS, "row") as work:
            for _ in work:
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    done = []
    assert work_through(tmp_path, done) and len(done) == COUNT


def test_a_unit_that_cannot_be_done_keeps_nobody(tmp_path):
    with SharedWork(tmp_path, UNITS, "row") as work:
        for number in work:
            if number == 5:
                work.leave_out(number)
                continue
            write(tmp_path, number)
            work.finish(number)
    assert work.done == set(range(COUNT)) - {5}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        name for name in WHOLE if not name.startswith("u5.")
    ]


def test_what_is_taken_ahead_is_finished_before_others_are_waited_for(tmp_path, short):
    """Two that each waited for what the other had taken ahead would wait forever."""

    def work_ahead(_):
        with SharedWork(tmp_path, UNITS, "row") as work:
            while work.more():
                ahead = collections.deque()
                for number in work.take():
                    ahead.append(number)
                    if len(ahead) > 3:
                        self_finish(work, ahead.popleft())
                for number in ahead:
                    self_finish(work, number)
            return work.finished

    def self_finish(work, number):
        write(tmp_path, number)
        work.finish(number)

    assert run_together(work_ahead, 3) == [True] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_with_many_losses_nothing_is_lost(tmp_path, monkeypatch, seed):
    """Processes are lost at random, with what they have taken ahead; others go on."""
    monkeypatch.setattr(leases, "SECONDS", 0.3)
    draw, had = random.Random(seed), []
    for _ in range(8):
        work = SharedWork(tmp_path, UNITS, "row")
        for number in work.take():
            if draw.random() < 0.4:
                had.append(number)
                break
            write(tmp_path, number)
            work.finish(number)
        lose(work)
    done = []
    assert work_through(tmp_path, done)
    assert set(done) <= set(had) | set(range(COUNT))
    assert sorted(path.name for path in tmp_path.iterdir()) == WHOLE


def test_progress_is_that_of_all(tmp_path, capsys, short):
    other, done = SharedWork(tmp_path, UNITS, "row"), []
    taken = [number for number, _ in zip(other.take(), range(6), strict=False)]
    for number in taken:
        write(tmp_path, number)
        other.finish(number)
    other.close()
    assert work_through(tmp_path, done) and len(done) == 6
    assert "100% 78/78" in capsys.readouterr().err
