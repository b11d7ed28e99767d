"""Phases divide the time without rest; what is done twice and what is lost is no progress."""

import json
import random

import pytest

from big_align.training.logs.goodput import PHASES, RunTime
from tests.fake_clock import FakeClock


def spend(clock, **phases):
    for name, seconds in phases.items():
        with clock.phase(name):
            clock.pass_time(seconds)


@pytest.mark.parametrize("seed", range(5))
def test_phases_however_nested_divide_the_time_without_rest(seed):
    draw, clock, expected = random.Random(seed), FakeClock(), dict.fromkeys(PHASES, 0.0)

    def go_on(depth):
        for _ in range(draw.randint(0, 4)):
            seconds = draw.random()
            expected[clock.current.name] += seconds
            clock.pass_time(seconds)
            if depth < 5:
                with clock.phase(draw.choice(list(PHASES))):
                    go_on(depth + 1)

    go_on(0)
    clock.begin("steps")
    assert clock.seconds() == pytest.approx(expected)
    assert sum(clock.seconds().values()) == pytest.approx(clock.now)


def test_an_error_ends_its_phase():
    clock = FakeClock()
    clock.begin("steps")
    with pytest.raises(OSError), clock.phase("saving"):
        clock.pass_time(1)
        raise OSError
    assert clock.current.name == "steps"


def test_the_clock_names_the_phase_and_its_start():
    clock = FakeClock()
    clock.pass_time(3)
    with clock.phase("evaluating"):
        clock.pass_time(2)
        assert clock.current == ("evaluating", 3)
        with clock.phase("evaluating"):
            assert clock.current == ("evaluating", 3)
    assert clock.current == ("starting", 5)
    with pytest.raises(ValueError, match="'sleeping' is not one of steps, "):
        clock.begin("sleeping")


def test_fractions_of_a_process_sum_to_one_and_goodput_is_that_of_steps(tmp_path):
    clock = FakeClock()
    time = RunTime(str(tmp_path), clock, lambda: clock.now)
    spend(clock, starting=10, compiling=20, saving=5, data=5)
    time.begin_step(1)
    clock.pass_time(60)
    metrics = time.metrics()
    assert metrics.pop("goodput") == pytest.approx(0.6)
    assert sum(metrics.values()) == pytest.approx(1)
    assert metrics["time/steps"] == pytest.approx(0.6)
    assert metrics["time/compiling"] == pytest.approx(0.2)


def test_steps_done_again_and_the_time_between_processes_are_no_progress(tmp_path, capsys):
    clock = FakeClock()
    first = RunTime(str(tmp_path), clock, lambda: 1000 + clock.now)
    spend(clock, starting=10)
    for step in range(1, 9):
        first.begin_step(step)
        clock.pass_time(5)
    first.save()  # Killed after step 8 at 1050; step 4 was saved.

    clock = FakeClock()
    second = RunTime(str(tmp_path), clock, lambda: 1080 + clock.now)
    for step in range(5, 13):
        second.begin_step(step)
        clock.pass_time(5)
    metrics = second.metrics()
    assert metrics["time/steps"] == metrics["time/repeated_steps"] == pytest.approx(0.5)
    assert metrics["goodput"] == pytest.approx((40 + 20) / (10 + 40 + 30 + 40))

    second.report()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["time", "this", "process", "the", "whole", "run"]
    assert lines[1].split() == ["steps", "20.0", "s", "50.0%", "60.0", "s", "50.0%"]
    assert lines[-1].split()[-6:] == ["0.0", "s", "0.0%", "30.0", "s", "25.0%"]
    assert json.loads((tmp_path / "goodput.json").read_text())["step"] == 12


@pytest.mark.parametrize(
    "text",
    ['{"step": 8, "ti', "", "[]", "{}", "\0", '{"step": 8, "time": 1, "seconds": {"steps": 1}}'],
)
def test_a_record_that_a_full_disk_cut_short_is_no_reason_to_fail(tmp_path, text):
    (tmp_path / "goodput.json").write_text(text)
    time = RunTime(str(tmp_path), clock := FakeClock(), lambda: 0.0)
    time.begin_step(1)
    clock.pass_time(1)
    assert time.metrics()["goodput"] == 1
