"""A step that hangs is reported once, with what every process does."""

import time

import pytest

from big_align.parallel.distributed import activity
from big_align.training.logs.goodput import Clock
from big_align.training.watchdog import MOST_LINES, Watchdog, format_activities


def do(what, step=7, silent=0, seconds=3.0):
    return {"host": "here", "what": what, "step": step, "seconds": seconds, "silent": silent}


def take_steps(seconds, least_seconds=0.2):
    """Takes steps of so many seconds; returns the reports."""
    reports = []
    tell = lambda: {0: activity.describe() | {"silent": 0}}  # noqa: E731
    watchdog, clock = Watchdog(reports.append, tell, least_seconds), Clock()
    for step, length in enumerate(seconds, start=1):
        activity.begin("in a step", step)
        with watchdog.time_step(step), clock.phase("data"):
            time.sleep(length)
    watchdog.close()
    return reports


def test_a_hanging_step_is_reported_once_with_its_activity():
    (report,) = take_steps([0.01] * 5 + [1.0] + [0.01])
    first, _, row = report.splitlines()
    assert first.startswith("step 6 takes 0 s so far, the median is 0.01")
    assert row.split()[0] == "0" and row.split()[2] == "6"
    assert row.endswith("waiting for data for 0 s")


def test_a_step_that_has_failed_is_no_longer_watched():
    """What is written and closed after a failure takes its time, too."""
    reports = []
    watchdog = Watchdog(reports.append, lambda: {0: activity.describe() | {"silent": 0}}, 0.2)
    try:
        for step in range(1, 6):
            with watchdog.time_step(step):
                time.sleep(0.01)
        with pytest.raises(OSError), watchdog.time_step(6):
            raise OSError
        time.sleep(0.6)
    finally:
        watchdog.close()
    assert reports == []


def test_steps_are_slow_only_compared_with_enough_others_and_when_they_take_long():
    assert take_steps([0.01] * 3 + [0.5]) == []  # the first ones differ: caches, compilation
    assert take_steps([0.01] * 5 + [0.15]) == []  # ten times the median, but no time at all
    assert take_steps([0.05] * 6 + [0.4]) == []  # long, but not ten times the median


def test_an_activity_is_the_phase_of_the_clock():
    clock = Clock()
    clock.begin("steps")
    activity.begin("in a step", 3)
    with clock.phase("saving"):
        assert activity.describe()["what"] == "saving"
        assert activity.describe()["step"] == 3
    assert activity.describe()["what"] == "steps"


def test_of_many_processes_the_uncommon_ones_are_shown():
    table = {process: do("in a step") for process in range(1000)}
    table |= {500: do("waiting for data"), 700: do("in a step", silent=25)}
    lines = format_activities(table).splitlines()
    assert lines[1].split()[:3] == ["500", "here", "7"]
    assert lines[1].endswith("waiting for data for 3 s")
    assert lines[2].split()[0] == "700" and lines[2].endswith("; silent for 25 s")
    assert lines[-1] == f"  ... and {1000 - MOST_LINES} more"
