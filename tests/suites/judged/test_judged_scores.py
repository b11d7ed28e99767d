"""Scores of what people have judged: cases by hand, ties, and against scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from big_align.core.errors import UserError
from big_align.suites.judged import scores


def test_the_right_text_is_nearer_than_all_others_and_a_tie_is_wrong():
    cosine = np.float32([[0.5, 0.1, 0.4], [0.5, 0.6, 0.1], [0.5, 0.5, 0.1], [0.0, -0.1, -0.2]])
    assert scores.choose_text(cosine).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "cosine, text, image",
    [
        ([[0.9, 0.1], [0.1, 0.9]], True, True),
        # the first image is near to both texts, and its own is the nearer one
        ([[0.9, 0.8], [0.1, 0.5]], True, False),
        # the first text is near to both images, and its own is the nearer one
        ([[0.9, 0.1], [0.8, 0.5]], False, True),
        ([[0.1, 0.9], [0.9, 0.1]], False, False),
        ([[0.5, 0.5], [0.1, 0.9]], False, True),
        ([[0.5, 0.1], [0.5, 0.9]], True, False),
        ([[0.5, 0.5], [0.5, 0.5]], False, False),
    ],
)
def test_two_images_and_two_texts_by_hand(cosine, text, image):
    found = scores.match_two(np.float32([cosine]))
    assert (found.text[0], found.image[0], found.group[0]) == (text, image, text and image)


def test_exchanging_the_pairs_of_a_case_changes_nothing():
    cosine = np.random.default_rng(0).normal(size=(200, 2, 2))
    one, other = scores.match_two(cosine), scores.match_two(cosine[:, ::-1, ::-1])
    for name in ("text", "image", "group"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    turned = scores.match_two(cosine.transpose(0, 2, 1))
    np.testing.assert_array_equal(turned.text, one.image)


def test_categories_by_hand_and_in_any_order():
    right = np.array([True, False, True, True, False])
    category = ["b", "b", "a", "", "b"]
    found = scores.score_categories(right, category)
    assert found == {"a": (1.0, 1), "b": (pytest.approx(1 / 3), 3)}
    order = [4, 2, 0, 3, 1]
    assert scores.score_categories(right[order], [category[n] for n in order]) == found


def test_a_correlation_with_ties_is_scipys():
    rng = np.random.default_rng(0)
    for count in (3, 10, 300):
        one, other = rng.integers(0, 5, count), rng.normal(size=count)
        one[:2] = 0, 1
        expected = spearmanr(one, other).statistic
        assert scores.correlate_ranks(one, other) == pytest.approx(expected, abs=1e-12)
        order = rng.permutation(count)
        assert scores.correlate_ranks(one[order], other[order]) == pytest.approx(expected)


def test_a_correlation_by_hand():
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 by the root of 4.5 times 5."""
    found = scores.correlate_ranks(np.array([0, 1, 1, 7]), np.array([1, 2, 3, 4]))
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert scores.correlate_ranks(np.zeros(4), np.arange(4)) == 0  # collapsed to a point


def test_a_bootstrap_samples_one_pair_of_half_of_the_queries():
    rng = np.random.default_rng(0)
    rating = rng.normal(size=400)
    query = np.arange(400)
    agreeing = scores.bootstrap_correlation(rating, rating, query)
    assert agreeing == (pytest.approx(1), pytest.approx(0))
    mean, deviation = scores.bootstrap_correlation(rng.normal(size=400), rating, query)
    assert abs(mean) < 0.15
    # half of 400 queries leave a correlation of chance with a deviation of some 1 / sqrt(200),
    # times sqrt(1 - 1/2) as they are drawn without repetition
    assert deviation == pytest.approx(np.sqrt(0.5 / 200), rel=0.15)


def test_a_query_with_many_pairs_counts_once():
    """Nine pairs of ten queries agree; a last query with 1000 pairs that do not weighs as one."""
    rating = np.concatenate([np.arange(40.0), np.linspace(0, 40, 1000)])
    cosine = np.concatenate([np.arange(40.0), np.linspace(40, 0, 1000)])
    query = np.concatenate([np.arange(40), np.full(1000, 40)])
    mean, _ = scores.bootstrap_correlation(cosine, rating, query)
    assert mean > 0.85 and scores.correlate_ranks(cosine, rating) < -0.9
    order = np.random.default_rng(1).permutation(len(rating))
    shuffled, _ = scores.bootstrap_correlation(cosine[order], rating[order], query[order])
    assert shuffled == pytest.approx(mean, abs=0.02)


def test_too_few_queries_are_refused():
    with pytest.raises(UserError, match="3 queries have ratings"):
        scores.bootstrap_correlation(np.arange(9.0), np.arange(9.0), np.arange(9) % 3)


def test_ranks_of_positives_by_hand():
    """Candidates at 0, 10, 20, 30 degrees; queries at 0 and 30, and one without a positive."""
    angles = np.deg2rad([0, 10, 20, 30])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    positive = np.array([[3, 1], [0, 2], [0, 1]])
    assert scores.rank_of_positive(points, points, positive).tolist() == [1, 2]
    # itself is no candidate, and no positive
    positive = np.concatenate([positive, [[0, 0], [2, 2]]])
    found = scores.rank_of_positive(points, points, positive, itself=True)
    assert found.tolist() == [0, 1]


def test_ranks_of_positives_tie_against_the_model_and_need_no_order():
    same = np.ones((5, 2)) / np.sqrt(2)
    positive = np.array([[0, 1], [0, 2], [3, 3]])
    assert scores.rank_of_positive(same, same, positive).tolist() == [3, 4]
    rng = np.random.default_rng(0)
    queries, candidates = rng.normal(size=(2, 30, 4))
    positive = np.argwhere(rng.random((30, 30)) < 0.1)
    found = scores.rank_of_positive(queries, candidates, positive)
    shuffled = positive[rng.permutation(len(positive))]
    for chunk in (1, 7, 1024):
        again = scores.rank_of_positive(queries, candidates, shuffled, chunk=chunk)
        np.testing.assert_array_equal(found, again)
    similarity = queries @ candidates.T
    for rank, query in zip(found, np.unique(positive[:, 0]), strict=True):
        order = np.argsort(-similarity[query])
        right = set(positive[positive[:, 0] == query, 1].tolist())
        assert rank == next(n for n, c in enumerate(order.tolist()) if c in right)
