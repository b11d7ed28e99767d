"""The spread of a number by hand, and which series are far outside of theirs and which are not."""

import json
import math

import numpy as np
import pytest

from big_align.training.health.spread import FACTOR, LEAST, SIGMAS, WINDOW, RunningSpread

STEPS = 1000


def feed(side, values):
    """Where the spread is left."""
    spread = RunningSpread(side)
    return [n for n, value in enumerate(values) if spread.leaves(float(value))]


def test_the_spread_is_that_of_logarithms_by_median_and_median_deviation():
    # Logarithms of 40 values: ten each of 0, 1, 2 and 5. The median is 1.5; the deviations are
    # 1.5, 0.5, 0.5, 3.5, so that theirs is 1.
    values = [math.exp(x) for x in (0.0, 1.0, 2.0, 5.0)] * 10
    above, below = RunningSpread("above"), RunningSpread("below")
    for value in values:
        assert above.leaves(value) is None and below.leaves(value) is None
    assert above.expect() == pytest.approx((0, math.exp(1.5 + SIGMAS * 1.4826)))
    assert below.expect() == pytest.approx((math.exp(1.5 - SIGMAS * 1.4826), math.inf))


def test_a_number_that_never_moves_may_do_so_by_a_factor():
    spread = RunningSpread("above")
    for n in range(LEAST):
        assert spread.expect() is None, n
        assert spread.leaves(3.0) is None
    assert spread.expect() == pytest.approx((0, 3.0 * FACTOR))
    assert spread.leaves(3.0 * FACTOR * 1.01) == pytest.approx((0, 3.0 * FACTOR))
    assert spread.leaves(100.0) is None  # it is outside already
    assert spread.leaves(3.0) is None
    assert spread.leaves(100.0) is not None


def test_the_window_forgets_and_a_new_level_becomes_the_usual_one():
    spread = RunningSpread("above")
    for value in [1.0] * WINDOW + [50.0] * WINDOW:
        spread.leaves(value)
    assert spread.expect() == pytest.approx((0, 50.0 * FACTOR))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_far_outside_and_spoils_nothing(value):
    spread = RunningSpread("above")
    for _ in range(LEAST):
        spread.leaves(1.0)
    before = spread.expect()
    assert spread.leaves(value) == before and spread.expect() == before


@pytest.mark.parametrize("seed", range(4))
def test_a_spread_that_was_written_down_goes_on_bit_for_bit(seed):
    values = np.exp(np.random.default_rng(seed).normal(size=300)).tolist()
    whole = RunningSpread("above")
    for n, value in enumerate(values):
        if n == 100 + seed:
            other = RunningSpread("above")
            other.restore(json.loads(json.dumps(whole.state())))
        whole.leaves(value)
        if n >= 100 + seed:
            other.leaves(value)
            assert other.expect() == whole.expect()
    assert other.state() == whole.state()


def decay(noise):
    """A loss that falls from 8 to 0.3, with noise of its logarithm."""
    return 8 * np.exp(-np.linspace(0, 3.3, STEPS)) * np.exp(noise)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 1.0])
def test_ordinary_runs_raise_no_alarm(seed, sigma):
    draw = np.random.default_rng(seed)
    normal = draw.normal(size=STEPS) * sigma
    assert feed("above", decay(normal)) == []
    # Gradients grow by a hundred times in a warmup of any length, and stay.
    for warmup in (50, 800):
        ramp = np.minimum(np.arange(STEPS) / warmup, 1)
        assert feed("above", 100**ramp * np.exp(normal)) == []
        assert feed("below", (0.001 + ramp) * np.exp(normal)) == []
    # Noise with heavy tails, as of gradients: its largest of 1000 is 10 times the usual.
    assert feed("above", np.exp(draw.laplace(size=STEPS) * sigma * 0.7)) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("where", [LEAST + 1, 600, STEPS - 1])
def test_a_jump_is_found_at_its_step(seed, where):
    draw = np.random.default_rng(seed)
    loss = decay(draw.normal(size=STEPS) * 0.05)
    spiked = loss.copy()
    spiked[where] *= 6
    assert feed("above", spiked) == [where]
    diverged = loss.copy()
    diverged[where:] = 8.3 + draw.normal(size=STEPS - where) * 0.01  # knows nothing any more
    if where > LEAST + 1:  # the loss is no less there
        assert feed("above", diverged)[0] == where
    assert feed("below", 1 / spiked) == [where]
