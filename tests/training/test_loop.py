"""When what is due, and what a queue of metrics lets through."""

import jax.numpy as jnp
import pytest

from big_align.errors import NotFiniteError, Stopped
from big_align.training.checkpoint import Checkpointer
from big_align.training.goodput import Clock, RunTime
from big_align.training.loop import Loop, MetricQueue, Schedule
from big_align.training.profiling import Profiler
from big_align.training.state import TrainState
from big_align.training.stopping import StopSignals


def test_the_last_step_is_evaluated_and_saved_whatever_divides_it():
    schedule = Schedule(total_steps=10, log_every=1, evaluate_every=4, save_every=3)
    steps = range(1, 11)
    assert [step for step in steps if schedule.evaluates(step)] == [4, 8, 10]
    assert [step for step in steps if schedule.saves(step)] == [3, 6, 9, 10]


def metrics(loss):
    return {"loss": jnp.float32(loss), "parameter_norm": jnp.float32(1)}


def test_metrics_come_out_in_order_and_late():
    queue = MetricQueue(depth=2, last_good=lambda: None)
    out = [[step for step, _ in queue.push(step, metrics(step))] for step in range(1, 6)]
    assert out == [[], [], [1], [2], [3]]
    assert [(step, scalars["loss"]) for step, scalars in queue.flush()] == [(4, 4.0), (5, 5.0)]
    assert list(queue.flush()) == []


def test_a_loss_that_is_not_finite_names_its_step_and_the_last_good_checkpoint():
    queue = MetricQueue(depth=0, last_good=lambda: 40)
    assert [step for step, _ in queue.push(41, metrics(1.0))] == [41]
    with pytest.raises(NotFiniteError, match="the loss is nan at step 42; .* that of step 40"):
        list(queue.push(42, metrics(float("nan"))))


class Saves(Checkpointer):
    """The steps at which it was asked to save."""

    def __init__(self):
        self.steps = []

    latest_step = None

    def save(self, state, record):
        self.steps.append(int(state.step))

    def preempted(self, step):
        return False


def run_loop(workdir, stop_at):
    """Prepares three steps, with a request to stop during one of them."""
    saves, signals = Saves(), StopSignals()

    def train_step(state, batch):
        step = state.step + 1
        signals.received |= step == stop_at
        return TrainState(step, {}, {}, (), 0), metrics(1.0)

    loop = Loop(
        str(workdir), Schedule(3, log_every=1, evaluate_every=9, save_every=9), saves,
        evaluate=lambda state: {"evaluated": float(state.step)}, learning_rate=lambda step: 0.0,
        record={}, epochs=lambda step: {}, signals=signals, batch_size=1, step_flops=1.0,
        time=RunTime(str(workdir), Clock()), profiler=Profiler(str(workdir), None, 0, 3),
    )  # fmt: skip
    return saves, lambda: loop.run(TrainState(0, {}, {}, (), 0), iter([{}] * 3), train_step)


def test_a_request_to_stop_saves_the_step_and_ends_the_run(tmp_path):
    saves, run = run_loop(tmp_path, stop_at=2)
    with pytest.raises(Stopped, match="after step 2"):
        run()
    assert saves.steps == [2]


def test_a_request_to_stop_in_the_last_step_lets_the_run_finish(tmp_path):
    saves, run = run_loop(tmp_path, stop_at=3)
    assert run() == {"evaluated": 3.0} and saves.steps == [3]
