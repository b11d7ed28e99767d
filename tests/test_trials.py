"""Trials of experiments run each on a core, and end with the process that runs them."""

import multiprocessing
import os
import pathlib
import time

import pytest

from experiments import trials


def square(number, log):
    with open(log, "a") as file:
        file.write(f"{number} {len(os.sched_getaffinity(0))}\n")
    if number == 5:
        raise ValueError("diverged")
    return {"square": float(number**2)}


@pytest.mark.slow
def test_a_trial_has_a_core_of_its_own_and_one_that_fails_costs_no_other(tmp_path, capsys):
    log = tmp_path / "log.txt"
    some = [trials.Trial(f"n{n}", (n, str(log))) for n in (3, 4)]
    found = trials.run_trials(some, square, tmp_path)
    assert {name: record.numbers["square"] for name, record in found.items()} == {"n3": 9, "n4": 16}
    assert sorted(log.read_text().splitlines()) == ["3 1", "4 1"]
    more = [trials.Trial(f"n{n}", (n, str(log))) for n in (5, 6, 7)]
    with pytest.raises(ValueError, match="diverged"):
        trials.run_trials(more, square, tmp_path)
    assert trials.read_records(tmp_path / trials.FILE).keys() == {"n3", "n4", "n6", "n7"}
    assert "n5 failed: diverged" in capsys.readouterr().out


def wait_long(number, folder):
    (pathlib.Path(folder) / f"{os.getpid()}.pid").write_text("")
    time.sleep(120)


def run_long(folder):
    some = [trials.Trial(f"n{n}", (n, str(folder))) for n in range(2)]
    trials.run_trials(some, wait_long, folder)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_trials_end_with_the_process_that_was_killed(tmp_path):
    parent = multiprocessing.get_context("spawn").Process(target=run_long, args=(tmp_path,))
    parent.start()
    until = time.monotonic() + 60
    while not (started := list(tmp_path.glob("*.pid"))):
        assert time.monotonic() < until
        time.sleep(0.1)
    parent.kill()
    parent.join()
    while any(is_running(path.stem) for path in started):
        assert time.monotonic() < until
        time.sleep(0.1)
