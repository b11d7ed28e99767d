"""When what is due, and what a queue of metrics lets through."""

import jax.numpy as jnp
import pytest

from big_align.errors import NotFiniteError
from big_align.training.loop import MetricQueue, Schedule


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
