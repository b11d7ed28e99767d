"""When what is due, and what a queue of metrics lets through."""

import errno
import json
import math
import pathlib
import re

import jax.numpy as jnp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from big_align.core.errors import NotFiniteError, Stopped
from big_align.training.health.rewinds import Health
from big_align.training.logs.evaluations import TRAINING, EvaluationLog, read_evaluations
from big_align.training.logs.goodput import Clock, RunTime
from big_align.training.logs.metrics import MetricWriter
from big_align.training.loop import Loop, MetricQueue, Schedule
from big_align.training.profiling import Profiler
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.state import TrainState
from big_align.training.stopping import StopSignals
from tests.fake_clock import FakeClock


def test_the_last_step_is_evaluated_and_saved_whatever_divides_it():
    schedule = Schedule(total_steps=10, log_every=1, evaluate_every=4, save_every=3)
    steps = range(1, 11)
    assert [step for step in steps if schedule.evaluates(step)] == [4, 8, 10]
    assert [step for step in steps if schedule.saves(step)] == [3, 6, 9, 10]


def metrics(loss):
    return {"loss": jnp.float32(loss), "parameter_norm": jnp.float32(1)}


def test_metrics_come_out_in_order_and_late():
    queue = MetricQueue(depth=2)
    out = [[step for step, _ in queue.push(step, metrics(step))] for step in range(1, 6)]
    assert out == [[], [], [1], [2], [3]]
    assert [(step, scalars["loss"]) for step, scalars in queue.flush()] == [(4, 4.0), (5, 5.0)]
    assert list(queue.flush()) == []


class Saves(Checkpointer):
    """The steps at which it was asked to save."""

    def __init__(self):
        self.steps, self.noted, self.folder = [], None, pathlib.Path("checkpoints")

    latest_step = None

    def improves(self, numbers):
        return False

    def save(self, state, record, numbers=None, last=False):
        self.steps.append(int(state.step))

    def settle(self):
        return True

    def note(self, step, numbers):
        self.noted = step, numbers

    def preempted(self):
        return False


def make_health(workdir):
    return Health(
        str(workdir), 0, rewinds=False, list_examples=lambda step: [], last_good=lambda: None
    )


def make_loop(workdir, saves, clock=None, **more):
    given = dict(
        schedule=Schedule(3, log_every=1, evaluate_every=9, save_every=9), batch_size=1,
        evaluate=lambda state: {"evaluated": float(state.step)}, pictures=lambda step: {},
        learning_rate=lambda step: 10.0 * step, epochs=lambda step: {}, signals=StopSignals(),
    )  # fmt: skip
    return Loop(
        str(workdir), checkpointer=saves, evaluations=EvaluationLog(str(workdir), TRAINING, {}),
        health=make_health(workdir), record={}, step_flops=1.0,
        time=RunTime(str(workdir), clock or Clock()), profiler=Profiler(str(workdir), None, 0, 3),
        **given | more,
    )  # fmt: skip


def state_of(step):
    return TrainState(step, {}, {}, (), 0)


def run_loop(workdir, stop_at, start=0, losses=(1.0,) * 3, **more):
    """Prepares the rest of three steps, with a request to stop during one of them."""
    saves, signals = Saves(), StopSignals()

    def train_step(state, batch):
        step = state.step + 1
        signals.received |= step == stop_at
        return state_of(step), metrics(losses[step - 1])

    loop = make_loop(workdir, saves, signals=signals, **more)
    return saves, lambda: loop.run(state_of(start), iter([{}] * 3), train_step)


class Device:
    """Takes its time for each step, one after another; whoever wants a step's numbers waits."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.done = clock, seconds, [0.0]

    def train_step(self, state, batch):
        self.done.append(max(self.done[-1], self.clock.now) + self.seconds)
        return state_of(state.step + 1), metrics(state.step + 1)

    def get(self, numbers):
        self.clock.pass_time(max(0.0, self.done[int(numbers["loss"])] - self.clock.now))
        return numbers


@pytest.mark.parametrize("log_every", [1, 10])
@pytest.mark.parametrize(("waiting", "computing"), [(0.0, 1.0), (1.0, 0.0)])
def test_rates_are_exact_whatever_is_due(tmp_path, monkeypatch, log_every, waiting, computing):
    """Steps take a second, evaluating and saving longer: the queue is emptied before both."""
    clock = FakeClock()
    device = Device(clock, computing)
    monkeypatch.setattr("jax.device_get", device.get)

    def batches():
        while True:
            clock.pass_time(waiting)
            yield {}

    saves = Saves()
    saves.save = lambda *_, **__: clock.pass_time(30)
    loop = make_loop(
        tmp_path, saves, clock, schedule=Schedule(60, log_every, evaluate_every=40, save_every=25),
        evaluate=lambda state: clock.pass_time(100) or {"evaluated": 1.0}, batch_size=128,
    )  # fmt: skip
    loop.run(state_of(0), batches(), device.train_step)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = {x["step"]: x["images_per_second"] for x in logged if "images_per_second" in x}
    assert rates == pytest.approx({s: 128.0 for s in range(log_every, 61, log_every)})
    waits = [x["data_wait_seconds"] for x in logged if "data_wait_seconds" in x]
    assert waits == pytest.approx([waiting] * len(waits))


def test_the_learning_rate_that_is_logged_is_that_of_the_step(tmp_path):
    """The first step is taken at the rate of no updates."""
    _, run = run_loop(tmp_path, stop_at=None)
    run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert rates == {1: 0.0, 2: 10.0, 3: 20.0}


def test_a_request_to_stop_saves_the_step_and_ends_the_run(tmp_path):
    saves, run = run_loop(tmp_path, stop_at=2)
    with pytest.raises(Stopped, match="after step 2"):
        run()
    assert saves.steps == [2]


def test_a_request_to_stop_is_not_kept_waiting_by_an_evaluation(tmp_path):
    saves, run = run_loop(tmp_path, stop_at=3)
    with pytest.raises(Stopped, match="in the evaluation of step 3"):
        run()
    assert saves.steps == [3] and not list(read_evaluations(tmp_path))
    for first in (True, False):  # what was not measured then is measured now, once
        saves, again = run_loop(tmp_path, stop_at=None, start=3)
        again()
        assert [line["numbers"] for line in read_evaluations(tmp_path)] == [{"evaluated": 3.0}]
        assert saves.noted == ((3, {"evaluated": 3.0}) if first else None)


class Killed(BaseException):
    """What ends a run like SIGKILL."""


@pytest.mark.parametrize("when", ["before it is recorded", "while pictures are drawn"])
def test_an_evaluation_is_logged_once_if_the_run_is_killed_after_it(tmp_path, monkeypatch, when):
    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        if when == "before it is recorded":
            patch.setattr(EvaluationLog, "write", kill)
        with pytest.raises(Killed):
            run_loop(tmp_path, stop_at=None, start=3, pictures=kill)[1]()
    run_loop(tmp_path, stop_at=None, start=3)[1]()
    logged = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in logged] == [{"step": 3, "evaluated": 3.0}]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("evaluated")] == [(3, 3.0)]
    assert len(list(read_evaluations(tmp_path))) == 1


def test_what_goes_wrong_with_measuring_loses_nothing(tmp_path):
    saves, run = run_loop(tmp_path, stop_at=None)

    def fail(numbers):
        raise ValueError("no such number")

    saves.improves = fail
    with pytest.raises(ValueError, match="no such number"):
        run()
    assert saves.steps == [3]


class Full:
    """A file on a full disk, which is written when it is flushed or closed."""

    def __init__(self, name):
        self.name = name

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    close = lambda self: None  # noqa: E731


@pytest.mark.parametrize(
    ("second", "error", "saved"), [(1.0, OSError, [3]), (math.nan, NotFiniteError, [])]
)
def test_logs_that_cannot_be_written_end_a_run_that_saves(
    tmp_path, monkeypatch, second, error, saved
):
    """The checkpoints may be on another disk; but what is not finite is never saved."""
    opened, path = MetricWriter.__init__, tmp_path / "metrics.jsonl"

    def open_full(self, *given):
        opened(self, *given)
        self._file = Full(str(path))

    monkeypatch.setattr(MetricWriter, "__init__", open_full)
    saves, run = run_loop(tmp_path, stop_at=None, losses=(1.0, second, 1.0))
    message = f"No space left on device: '{path}'" if error is OSError else "loss is nan at step 2"
    with pytest.raises(error, match=re.escape(message)):
        run()
    assert saves.steps == saved
