"""Distributions of cosines: values are in their bins, and steps follow one another."""

import numpy as np
import pytest

from big_align.evaluators.exhibits import cosines
from big_align.evaluators.exhibits.exhibit import continue_distributions, encode
from big_align.evaluators.exhibits.retrieval import Pairs
from big_align.plots.exhibit_pictures import RIGHT, draw_exhibit
from big_align.plots.ridges import crop_bins


def unit(rows):
    return np.asarray(rows, float) / np.linalg.norm(rows, axis=1, keepdims=True)


def mean_of(shown, group):
    middles = (np.array(shown.edges)[:-1] + np.array(shown.edges)[1:]) / 2
    return shown.shares[-1, group] @ middles


def test_values_are_in_their_bins():
    shown = cosines.show_cosines("t", ["a", "b"], [np.array([-1, 0.999, 1.0]), np.array([0.011])])
    assert len(shown.edges) == cosines.BINS + 1 and (shown.edges[0], shown.edges[-1]) == (-1, 1)
    a, b = shown.shares[0]
    assert a[0] == pytest.approx(1 / 3) and a[-1] == pytest.approx(2 / 3)
    (place,) = np.flatnonzero(b)
    assert b[place] == 1 and shown.edges[place] <= 0.011 < shown.edges[place + 1]


def test_captions_are_compared_with_their_image_and_with_a_wrong_one():
    rng = np.random.default_rng(0)
    zimg, owner = unit(rng.normal(size=(50, 64))), np.repeat(np.arange(50), 4)
    ztxt = unit(zimg[owner] + 0.05 * rng.normal(size=(200, 64)))
    (shown,) = cosines.show_pair_cosines(Pairs(zimg, ztxt, [""] * 200, owner, np.arange(50)))
    own = np.einsum("nd,nd->n", ztxt, zimg[owner])
    assert mean_of(shown, 0) == pytest.approx(own.mean(), abs=0.02)
    assert mean_of(shown, 1) == pytest.approx(0, abs=0.05)
    assert shown.shares.sum(axis=-1) == pytest.approx(1)
    (by_class,) = cosines.show_class_cosines(ztxt @ zimg.T, owner)  # images as classes
    assert by_class.shares == pytest.approx(shown.shares)


@pytest.mark.parametrize("count", [2, 3, 50])
def test_another_is_never_the_right_one_and_any_other_may_be(count):
    own = np.arange(4000) % count
    other = cosines.choose_others(own, count)
    assert (other != own).all() and other.min() >= 0
    assert len(set(zip(own.tolist(), other.tolist(), strict=True))) > 0.75 * count * (count - 1)


def test_one_image_has_nothing_to_compare_with():
    assert cosines.show_pair_cosines(Pairs(np.eye(1), np.eye(1), [""], [0], [0])) == []
    assert cosines.show_class_cosines(np.ones((3, 1)), np.zeros(3, int)) == []


def at(value):
    return cosines.show_cosines("t", ["a", "b"], [np.full(9, value), np.full(9, -value)])


def test_steps_follow_one_another_and_a_repeated_one_replaces_what_came_after():
    first = continue_distributions(at(0.1), 10, None)
    second = continue_distributions(at(0.5), 20, encode(first))
    third = continue_distributions(at(0.9), 30, encode(second))
    assert third.steps == [10, 20, 30]
    np.testing.assert_array_equal(
        third.shares, np.concatenate([at(x).shares for x in (0.1, 0.5, 0.9)])
    )
    again = continue_distributions(at(0.4), 20, encode(third))
    assert again.steps == [10, 20]
    np.testing.assert_array_equal(again.shares[1:], at(0.4).shares)
    other = at(0.1)._replace(groups=["a", "c"])
    assert continue_distributions(other, 40, encode(third)).steps == [40]


def test_empty_bins_beside_are_left_out_and_peaks_are_equally_high():
    shares = np.zeros((2, 1, 10))
    shares[0, 0, 4], shares[1, 0, 4:6] = 1, 0.5
    edges, heights = crop_bins(np.linspace(-1, 1, 11), shares)
    assert edges == pytest.approx([-0.4, -0.2, 0, 0.2, 0.4])
    assert heights.tolist() == [[[0, 1, 0, 0]], [[0, 1, 1, 0]]]
    edges, _ = crop_bins(np.linspace(-1, 1, 11), np.full((1, 1, 10), 0.1))
    assert len(edges) == 11


def test_a_drawn_step_has_its_curves_where_its_values_are():
    shown = continue_distributions(at(0.8), 20, encode(continue_distributions(at(0.2), 10, None)))
    drawn = draw_exhibit(shown).astype(int)
    band = 40
    bottom = len(drawn) - 30  # the axis is below
    lines = [bottom - 4, bottom - band - 4]  # the newest step is at the bottom

    def centers(line):
        gap = drawn[line, 130:] - RIGHT
        columns = np.flatnonzero(np.abs(gap).sum(axis=-1) < 60)
        return columns.mean() if len(columns) else None

    newest, before = map(centers, lines)
    assert newest > before + 100
