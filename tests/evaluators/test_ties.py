"""Equal is equal, whatever rounding makes of it; what differs is told apart."""

import numpy as np
import pytest

from big_align.core.ties import number_levels, reaches
from big_align.evaluators.knn import rank_of_label
from big_align.evaluators.retrieval import rank_of_match
from big_align.evaluators.scores import real_accuracy
from big_align.evaluators.zero_shot import measure_accuracy
from big_align.suites.judged import scores as judged


def collapse(count, dim, seed, noise=0.0):
    """Equal rows of unit length, or rows that differ by rounding."""
    rng = np.random.default_rng(seed)
    rows = np.tile(rng.normal(size=dim), (count, 1))
    rows += noise * rng.normal(size=rows.shape)
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


# With 5, 9, 13, ... rows of 384, OpenBLAS makes the last product larger by a digit.
@pytest.mark.parametrize("count, dim", [(5, 384), (7, 64), (9, 384), (33, 384), (40, 512)])
@pytest.mark.parametrize("noise", [0, 1e-7])
def test_embeddings_that_have_collapsed_to_a_point_score_nothing(count, dim, noise):
    images, texts = collapse(count, dim, 0, noise), collapse(count, dim, 1, noise)
    own = np.arange(count)
    pairs = np.stack([own, own], axis=1)
    for chunk in (1, 3, 1024):
        assert (rank_of_match(images, texts, own, own, chunk) == count - 1).all()
        assert (judged.rank_of_positive(images, texts, pairs, chunk=chunk) == count - 1).all()
    similarity = images @ texts.T
    assert measure_accuracy(similarity, own)["top1"] == 0
    assert measure_accuracy(30 * similarity, own)["top1"] == 0  # logits
    assert real_accuracy(similarity, np.eye(count, dtype=bool)) == 0
    assert not judged.choose_text(similarity).any()
    label = own % 2
    others = (label[:, None] != label).sum(axis=1)
    for alone in (True, False):
        ranks = rank_of_label(images, label, images, label, leave_one_out=alone)
        np.testing.assert_array_equal(ranks, others)
    assert judged.correlate_ranks(similarity[:, 0], np.arange(count)) == 0


def test_what_differs_by_more_than_rounding_is_told_apart():
    angles = np.linspace(0, 1.5, 300)
    points = np.float32(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    own = np.arange(300)
    assert (rank_of_match(points, points, own, own) == 0).all()
    assert measure_accuracy(points @ points.T, own)["top1"] == 1
    values = np.array([0.3, 0.1, 0.3 + 1e-7, 0.2, np.nan, 0.1])
    np.testing.assert_array_equal(number_levels(values), [2, 0, 2, 1, np.nan, 0])
    assert reaches(np.array([np.nan, 0.5, 0.4]), 0.5).tolist() == [True, True, False]
