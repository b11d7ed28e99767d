"""Scores of small cases computed by hand."""

import numpy as np
import pytest

from big_align.evaluators import scores


def test_accuracies_by_hand():
    table = np.float32([[0.9, 0.1, 0.0], [0.2, 0.1, 0.3], [0.5, 0.6, 0.1], [0.1, 0.8, 0.2]])
    label = np.array([0, 2, 0, 0])
    assert scores.accuracy(table, label) == pytest.approx(1 / 2)
    assert scores.mean_per_class(table, label) == pytest.approx((1 / 3 + 1) / 2)
    assert scores.mean_top1_top5(table, label) == pytest.approx((1 / 2 + 1) / 2)


def test_roc_auc_is_the_fraction_of_pairs_in_the_right_order():
    margin, label = np.float32([0.1, 0.7, 0.4, 0.9, 0.4]), np.array([0, 0, 1, 1, 0])
    # Of the six pairs of a 1 and a 0: four are right, 0.4 against 0.7 wrong, 0.4 and 0.4 tie.
    table = np.stack([-margin, margin], axis=1)
    assert scores.roc_auc(table, label) == pytest.approx(4.5 / 6)
    with pytest.raises(ValueError, match="two classes with examples of both"):
        scores.roc_auc(table, np.zeros(5, int))
    with pytest.raises(ValueError, match="there are 3 classes"):
        scores.roc_auc(np.zeros((5, 3)), label)


def test_11_point_average_precision_by_hand():
    # In order of score: hit, miss, hit, miss, miss, hit of three in all. Precisions at the hits are
    # 1, 2/3, 1/2 at recalls 1/3, 2/3, 1: recalls 0 to 0.3 give 1, 0.4 to 0.6 2/3, 0.7 to 1 1/2.
    score = np.array([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4]]).T
    present = np.array([[1, 0, 1, 0, 0, 1]], bool).T
    first = (4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11
    assert scores.map_11_point(score, present) == pytest.approx(first)
    # A second class whose highest score is a miss: precision 1/2 at recall 1, and nowhere more.
    second = np.array([[0, 1, 0, 0, 0, 0]], bool).T
    both = scores.map_11_point(np.hstack([score, score]), np.hstack([present, second]))
    assert both == pytest.approx((first + 1 / 2) / 2)
    # All scores are equal: found together, they have the precision of chance.
    assert scores.map_11_point(np.ones((6, 1)), present) == pytest.approx(1 / 2)
    with pytest.raises(ValueError, match="class 1 has no example"):
        scores.map_11_point(np.ones((6, 2)), np.hstack([present, np.zeros((6, 1), bool)]))


def test_real_accuracy_takes_any_right_class_and_leaves_out_what_has_none():
    table = np.float32([[0.9, 0.1, 0.3], [0.2, 0.8, 0.3], [0.5, 0.6, 0.1], [0.4, 0.4, 0.1]])
    present = np.array([[1, 0, 1], [1, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
    # right; wrong; without a class; a tie with a wrong class
    assert scores.real_accuracy(table, present) == pytest.approx(1 / 3)
    assert scores.real_accuracy(table, present | True) == 1
    label = np.array([0, 1, 1, 0])
    one = np.eye(3, dtype=bool)[label]
    assert scores.real_accuracy(table, one) == pytest.approx(scores.accuracy(table, label))
    with pytest.raises(ValueError, match="no example has a class"):
        scores.real_accuracy(table, np.zeros((4, 3), bool))
