"""Scores of tags in small cases computed by hand; what is unknown counts nowhere."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from big_align.evaluators.tag_scores import (
    average_precisions,
    check_choice,
    choose_tags,
    choose_top,
    mean_average_precision,
    measure_choice,
)


def draw(seed=0, n=30, c=6):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, c)).round(1)
    present = rng.random((n, c)) < 0.3
    return logits, present, rng.random((n, c)) < 0.7


def test_average_precision_by_hand():
    # In order of score: hit, miss, hit, miss: (1/1 + 2/3) / 2. The second tag's only hit is last.
    scores = np.array([[0.9, 0.1], [0.8, 0.4], [0.7, 0.3], [0.6, 0.2]])
    present = np.array([[1, 1], [0, 0], [1, 0], [0, 0]], bool)
    known = np.ones_like(present)
    expected = [(1 + 2 / 3) / 2, 1 / 4]
    np.testing.assert_allclose(average_precisions(scores, present, known), expected)
    assert mean_average_precision(scores, present, known) == pytest.approx(sum(expected) / 2)
    # Nobody knows whether the second image has the first tag, and whether any has the second.
    known[1, 0], known[:, 1] = False, False
    result = average_precisions(scores, present, known)
    assert result[0] == 1 and np.isnan(result[1])
    assert mean_average_precision(scores, present, known) == 1
    with pytest.raises(ValueError, match="no image is known to have any of the tags"):
        mean_average_precision(scores, present, np.zeros_like(known))


def test_images_that_tie_are_found_together():
    present = np.array([[1], [0], [0], [1]], bool)
    flat = average_precisions(np.zeros((4, 1)), present, np.ones_like(present))
    assert flat == pytest.approx(1 / 2)


def test_precision_recall_and_f1_by_hand():
    chosen = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]], bool)
    present = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 0]], bool)
    result = measure_choice(chosen, present, np.ones_like(chosen))
    # Right: 2 of 5 chosen and 5 there. By tag: 2/3 and 2/2, 0/1 and 0/2, 0/0 and 0/1; none has the
    # last one.
    assert result["overall_precision"] == pytest.approx(2 / 5)
    assert result["overall_recall"] == pytest.approx(2 / 5)
    assert result["overall_f1"] == pytest.approx(2 / 5)
    precision, recall = 2 / 9, 1 / 3
    assert result["class_precision"] == pytest.approx(precision)
    assert result["class_recall"] == pytest.approx(recall)
    assert result["class_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    nothing = measure_choice(np.zeros_like(chosen), present, np.ones_like(chosen))
    assert set(nothing.values()) == {0.0}


def test_an_unknown_tag_equals_a_removed_one():
    logits, present, known = draw()
    chosen = choose_tags(logits, known, 0.6)
    assert not (chosen & ~known).any()
    result = measure_choice(chosen, present, known)
    averages = average_precisions(logits, present, known)
    # Other logits, truth and choices where nothing is known change no number.
    noise = np.where(known, logits, -logits), np.where(known, present, ~present)
    assert measure_choice(chosen | ~known, noise[1], known) == result
    np.testing.assert_array_equal(average_precisions(*noise, known), averages)
    # Tag by tag it is what the images that are left give.
    kept = [known[:, tag] for tag in range(logits.shape[1])]
    for tag, rows in enumerate(kept):
        alone = average_precision_score(present[rows, tag], logits[rows, tag])
        assert averages[tag] == pytest.approx(alone)
    right = sum((chosen & present)[rows, tag].sum() for tag, rows in enumerate(kept))
    named = sum(chosen[rows, tag].sum() for tag, rows in enumerate(kept))
    assert result["overall_precision"] == pytest.approx(right / named)


def test_the_order_of_images_and_tags_changes_nothing():
    logits, present, known = draw(1)
    rng = np.random.default_rng(2)
    rows, columns = rng.permutation(logits.shape[0]), rng.permutation(logits.shape[1])
    moved = [x[rows][:, columns] for x in (logits, present, known)]
    assert mean_average_precision(*moved) == pytest.approx(
        mean_average_precision(logits, present, known)
    )
    scores, others = (
        measure_choice(choose_tags(x, z, 0.5), y, z)
        for x, y, z in ((logits, present, known), moved)
    )
    assert scores == pytest.approx(others)


def test_the_choice_is_by_probability_or_by_number():
    logits = np.array([[0.3, 0.5, -2.0, 0.5], [9.0, -9.0, 1.0, 2.0]])
    known = np.array([[1, 1, 1, 1], [0, 1, 1, 1]], bool)
    # The probability 0.6 has the logit 0.405.
    assert choose_tags(logits, known, 0.6).tolist() == [[0, 1, 0, 1], [0, 0, 1, 1]]
    assert choose_tags(logits, known, 0.6, top_k=1).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert choose_top(logits, known, 0).sum() == 0
    assert choose_top(logits, known, 9).tolist() == known.tolist()
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(8, 5))
    everything = np.ones(scores.shape, bool)
    probability = 1 / (1 + np.exp(-scores))
    np.testing.assert_array_equal(choose_tags(scores, everything, 0.7), probability > 0.7)


@pytest.mark.parametrize("threshold, top_k, message", [
    (0.0, 0, "threshold = 0.0 is not in"), (1.0, 0, "threshold = 1.0"), (0.5, -1, "top_k = -1"),
])  # fmt: skip
def test_values_out_of_range_are_named(threshold, top_k, message):
    with pytest.raises(ValueError, match=message):
        check_choice(threshold, top_k)
