import pickle

import numpy as np
import pytest

from big_align.data.loading.shuffle import PositionRandom


def draw(seed: int, position: int, count: int) -> list[float]:
    rng = PositionRandom(seed, position)
    return [rng.random() for _ in range(count)]


@pytest.mark.slow
def test_numbers_are_uniform_and_independent():
    """Along one stream, and across neighboring positions and seeds at the same draw."""
    streams = (
        draw(0, 0, 40_000),
        [draw(0, position, 1)[0] for position in range(40_000)],
        [draw(seed, 0, 1)[0] for seed in range(40_000)],
    )
    for numbers in map(np.array, streams):
        assert 0 <= numbers.min() and numbers.max() < 1
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 2000) ** 2 / 2000).sum() < 45  # chi squared, 19 degrees of freedom
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.025  # five deviations


def test_streams_are_not_shifted_copies_of_each_other():
    numbers = [x for seed in range(20) for position in range(20) for x in draw(seed, position, 20)]
    assert len(set(numbers)) == len(numbers)


def test_the_numbers_are_pinned():
    """A resumed run must draw the captions and crops of the run that wrote its checkpoint.

    The finalizer is that of SplitMix64, whose first value from state 0 is 0xE220A8397B1DCDAF; the
    state of seed 0 and position 0 is 0.
    """
    assert draw(0, 0, 1) == [(0xE220A8397B1DCDAF >> 11) / 2**53]


def test_a_copied_workdir_continues():
    rng = PositionRandom(1, 2)
    rng.random()
    copy = pickle.loads(pickle.dumps(rng))
    assert [copy.random(), copy.random()] == [rng.random(), rng.random()]
