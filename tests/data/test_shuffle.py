import numpy as np
import pytest

from big_align.data.loading.shuffle import Shuffle

SIZES = np.array([7, 1, 0, 12, 5])
N = int(SIZES.sum())


def visit(order: Shuffle, first: int, end: int) -> list[tuple[int, int]]:
    _, shards, indexes = order(np.arange(first, end))
    return list(zip(shards.tolist(), indexes.tolist(), strict=True))


@pytest.mark.parametrize("window", [1, 2, 4, 7, 24, 25, 26, 1000])
def test_every_epoch_visits_every_example_once(window):
    order = Shuffle(SIZES, seed=3, window=window)
    everything = sorted((s, i) for s, size in enumerate(SIZES) for i in range(size))
    for epoch in range(4):
        assert sorted(visit(order, epoch * N, (epoch + 1) * N)) == everything


@pytest.mark.parametrize("sizes", [SIZES, np.array([N])], ids=["shards", "one shard"])
def test_epochs_and_seeds_differ(sizes):
    order = Shuffle(sizes, seed=0)
    first, second = visit(order, 0, N), visit(order, N, 2 * N)
    assert first != second != visit(Shuffle(sizes, seed=1), 0, N) != first


def test_a_position_does_not_depend_on_what_is_asked_with_it():
    order = Shuffle(SIZES, seed=5, window=6)
    together = visit(order, 0, 3 * N)
    alone = [visit(Shuffle(SIZES, seed=5, window=6), p, p + 1)[0] for p in range(3 * N)]
    assert together == alone
    shuffled = np.random.default_rng(0).permutation(3 * N)
    epochs, shards, indexes = order(shuffled)
    np.testing.assert_array_equal(epochs, shuffled // N)
    assert list(zip(shards, indexes, strict=True)) == [together[p] for p in shuffled]


def test_a_window_reads_only_neighboring_shards():
    sizes = np.full(100, 50)
    order = Shuffle(sizes, seed=0, window=200)
    touched = [len({s for s, _ in visit(order, w * 200, (w + 1) * 200)}) for w in range(25)]
    assert max(touched) <= 5
    assert visit(order, 0, 200) != sorted(visit(order, 0, 200))


def test_a_full_window_mixes_all_shards():
    sizes = np.full(10, 1000)
    _, shards, _ = Shuffle(sizes, seed=0, window=10**6)(np.arange(1000))
    counts = np.bincount(shards, minlength=10)
    assert counts.min() > 60 and counts.max() < 140  # 100 expected, standard deviation 9.5


def test_the_shuffle_is_uniform():
    """Each example stands on each place about equally often."""
    places = np.array([Shuffle(np.array([5]), seed=s)(np.arange(5))[2] for s in range(2000)])
    counts = np.stack([np.bincount(places[:, p], minlength=5) for p in range(5)])
    assert np.abs(counts - 400).max() < 90  # five standard deviations


def test_the_order_is_pinned():
    """A resumed run must find the order of the run that wrote its checkpoint."""
    _, shards, indexes = Shuffle(np.array([3, 4]), seed=7)(np.arange(7, 14))
    assert shards.tolist() == PINNED_SHARDS
    assert indexes.tolist() == PINNED_INDEXES


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="window = 0"):
        Shuffle(SIZES, seed=0, window=0)
    with pytest.raises(ValueError, match="seed is -1"):
        Shuffle(SIZES, seed=-1)
    with pytest.raises(ValueError, match="at least one example"):
        Shuffle(np.array([0, 0]), seed=0)


PINNED_SHARDS = [0, 1, 1, 1, 0, 1, 0]
PINNED_INDEXES = [1, 2, 0, 1, 0, 3, 2]


def test_more_examples_than_32_bits_count():
    sizes = np.full(300, 10_000_000)
    order = Shuffle(sizes, seed=0, window=1000)
    total = int(sizes.sum())
    for first in (2**31 - 5000, total - 5000):
        places = visit(order, first, first + 5000)
        assert len(set(places)) == 5000
        assert all(0 <= shard < 300 and 0 <= index < 10_000_000 for shard, index in places)
