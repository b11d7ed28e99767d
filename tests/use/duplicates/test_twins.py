"""The nearest images, by buckets or without, against comparing all with all in NumPy."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.use.clusters.kmeans_init import Sample
from big_align.use.duplicates import twins
from big_align.use.duplicates.twins import Buckets, Nearest, find_earlier, find_nearest
from tests.tiny import make_mesh

ALL = Buckets(1, 1)


def draw_rows(count, seed, groups=12, dim=10, noise=0.25):
    """Draws rows around a few directions, of any length, some of them the same."""
    rng = np.random.default_rng(seed)
    middles = np.random.default_rng(99).normal(size=(groups, dim))
    rows = middles[rng.integers(0, groups, count)] + noise * rng.normal(size=(count, dim))
    return (rows * rng.uniform(0.5, 3, (count, 1))).astype(np.float32)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def collect(rows, others, buckets, devices=1, chunk=16):
    """Returns cosines and numbers of all rows, and checks that chunks follow each other."""
    blocks = list(
        find_nearest(Sample(rows), Sample(others), buckets, make_mesh(devices), chunk=chunk)
    )
    ends = np.cumsum([len(block.cosine) for _, block in blocks])
    assert [first for first, _ in blocks] == [0, *ends[:-1]] and ends[-1] == len(rows)
    return [np.concatenate([block[i] for _, block in blocks]) for i in range(2)]


@pytest.mark.slow_repeats
@pytest.mark.parametrize("buckets", [ALL, Buckets(7, 7)])
@pytest.mark.parametrize("devices", [8, 1])
def test_with_all_buckets_the_nearest_are_those_of_a_brute_force(buckets, devices):
    rows, others = draw_rows(75, 1), draw_rows(50, 2)
    cosine, number = collect(rows, others, buckets, devices)
    true = unit(rows) @ unit(others).T
    np.testing.assert_array_equal(number, true.argmax(1))
    np.testing.assert_allclose(cosine, true.max(1), atol=1e-6)


@pytest.mark.slow
def test_few_probes_find_nearly_all_that_lie_together():
    rows, others = draw_rows(400, 1, 40, 32, 0.02), draw_rows(600, 2, 40, 32, 0.02)
    cosine, number = collect(rows, others, Buckets(40, 3), chunk=100)
    true = unit(rows) @ unit(others).T
    np.testing.assert_allclose(cosine, np.take_along_axis(true, number[:, None], 1)[:, 0], 1e-5)
    assert (number == true.argmax(1)).mean() > 0.95
    one, _ = collect(draw_rows(400, 1, 40), draw_rows(600, 2, 40), Buckets(40, 1), chunk=100)
    most, _ = collect(draw_rows(400, 1, 40), draw_rows(600, 2, 40), Buckets(40, 8), chunk=100)
    assert (most >= one - 1e-6).all() and most.sum() > one.sum()  # data that are not parted well


def test_the_order_of_images_does_not_matter():
    rows, others = draw_rows(60, 1), draw_rows(50, 2)
    order, rearranged = (
        np.random.default_rng(n).permutation(count) for n, count in ((3, 60), (4, 50))
    )
    cosine, number = collect(rows, others, Buckets(5, 5))
    again, moved = collect(rows[order], others[rearranged], Buckets(5, 5))
    np.testing.assert_allclose(again, cosine[order], atol=1e-6)
    np.testing.assert_array_equal(rearranged[moved], number[order])


@pytest.mark.parametrize("buckets", [ALL, Buckets(4, 4)])
def test_images_that_could_not_be_read_take_no_part(buckets):
    rows, others = draw_rows(40, 1), draw_rows(30, 2)
    nearest = (unit(rows) @ unit(others).T).argmax(1)
    rows[[0, 17]], rows[39], others[nearest[5]], others[nearest[6]] = np.nan, 0, np.nan, 0
    cosine, number = collect(rows, others, buckets)
    assert (number[[0, 17, 39]] == -1).all() and (cosine[[0, 17, 39]] == -1).all()
    left = np.flatnonzero(np.isfinite(others).all(1) & others.any(1))
    kept = np.setdiff1d(np.arange(40), [0, 17, 39])
    true = unit(rows[kept]) @ unit(others[left]).T
    np.testing.assert_array_equal(number[kept], left[true.argmax(1)])
    np.testing.assert_allclose(cosine[kept], true.max(1), atol=1e-6)
    with pytest.raises(UserError, match="none could be read"):
        collect(rows, np.full_like(others, np.nan), buckets)


def brute_earlier(rows, left_out=()):
    """For each row its nearest earlier one, in plain loops."""
    rows = rows.copy()
    rows[list(left_out)] = 0
    cosine, number = np.full(len(rows), -1.0), np.full(len(rows), -1)
    for late in range(len(rows)):
        for early in range(late):
            if rows[late].any() and rows[early].any():
                one, other = unit(rows[[late, early]])
                if one @ other > cosine[late] + 1e-7:
                    cosine[late], number[late] = one @ other, early
    return cosine, number


@pytest.mark.parametrize("buckets", [ALL, Buckets(6, 6)])
def test_the_nearest_of_earlier_images_are_those_of_a_brute_force(buckets, monkeypatch):
    monkeypatch.setattr(twins, "BLOCK", 16)
    rows, out = draw_rows(70, 5), np.zeros(70, bool)
    rows[[9, 44]], out[[0, 30]] = 0, True
    found = find_earlier(Sample(rows), buckets, make_mesh(), out)
    cosine, number = brute_earlier(rows, [0, 30])
    np.testing.assert_allclose(found.cosine, cosine, atol=1e-6)
    np.testing.assert_array_equal(found.number, number)
    assert found.number[[0, 1, 9, 44, 30]].tolist() == [-1] * 5


def test_of_copies_the_first_stays_and_each_is_near_to_the_first():
    rows = draw_rows(30, 7)
    rows[[12, 20, 29]] = rows[4]
    found = find_earlier(Sample(rows), Buckets(5, 2), make_mesh())
    assert found.number[[12, 20, 29]].tolist() == [4, 4, 4]
    assert (found.cosine[[12, 20, 29]] > 0.99999).all() and found.cosine[4] < 0.999
    nothing = find_earlier(Sample(rows), ALL, make_mesh(), np.ones(30, bool))
    assert (nothing.number == -1).all()


def test_buckets_are_as_many_as_make_a_search_cheapest():
    assert Buckets.choose(49_999) == (1, 1)
    count, probes = Buckets.choose(1_000_000)
    costs = {k: k + probes * 1_000_000 / k for k in range(1000, 6000, 10)}
    assert abs(count - min(costs, key=costs.get)) <= 10 and probes == 10
    assert Buckets.choose(30, 5) == (5, 5)
    for wrong in ((30, 31), (30, 0), (30, 5, 0)):
        with pytest.raises(UserError, match="must be at least 1|more than the 30 images"):
            Buckets.choose(*wrong)
    with pytest.raises(UserError, match="rows of 10 and of 4 numbers"):
        list(find_nearest(Sample(draw_rows(9, 1)), Sample(draw_rows(9, 1, dim=4)), ALL,
                          make_mesh()))  # fmt: skip


def test_of_images_that_are_equally_near_the_first_stays():
    offers = [np.array([7, 4]), np.array([3, 6])]
    for order in (offers, offers[::-1]):
        nearest = Nearest.none(2)
        for number in order:
            nearest.offer(np.arange(2), np.float32([0.5, 0.9]), number)
        assert nearest.number.tolist() == [3, 4]
