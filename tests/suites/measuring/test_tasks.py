"""Scores of small cases computed by hand: calibration, several labels, folds, captions."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.labels.classes import ClassList
from big_align.data.sources.array_source import ArraySource
from big_align.evaluators.exhibits.retrieval import Pairs
from big_align.evaluators.scores import calibration_error, softmax
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.tasks import (
    LabeledSplit,
    TaskSettings,
    cut_pairs,
    describe_scores,
    list_numbers,
    measure_retrieval,
    measure_zero_shot,
)


def test_calibration_error_by_hand():
    """Two images at 0.9 with one right, in bin 13; one at 0.6 that is right, in bin 8."""
    probability = np.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]])
    error, bins = calibration_error(probability, np.array([True, False, True]))
    assert [b["bin"] for b in bins] == [8, 13]
    assert bins[1]["accuracy"] == 0.5 and bins[1]["confidence"] == pytest.approx(0.9)
    assert error == pytest.approx((2 * 0.4 + 1 * 0.4) / 3)


def test_what_is_sure_and_right_is_calibrated_and_ties_are_errors():
    sure = np.eye(3)[[0, 1, 2, 0]]

    def measure(scores, label):
        return describe_scores(scores, np.array(label), ["a", "b", "c"], "accuracy", 1e-3).numbers

    assert measure(sure, [0, 1, 2, 0])["ece"] == 0
    assert measure(sure, [1, 2, 0, 1])["ece"] == 1
    level = np.full((4, 2), 0.5)
    assert measure(level, [0, 1, 0, 1])["ece"] == pytest.approx(0.5)


def test_the_temperature_changes_the_calibration_alone():
    rng = np.random.default_rng(0)
    scores, label = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 6, 40)
    names = [str(c) for c in range(6)]
    cold, warm = (describe_scores(scores, label, names, "accuracy", t) for t in (0.01, 100.0))
    assert cold.score == warm.score == cold.numbers["acc1"]
    assert cold.numbers | {"ece": 0} == warm.numbers | {"ece": 0}
    # As good as sure of all, and sure of none: 1/6.
    assert cold.numbers["ece"] == pytest.approx(1 - cold.score, abs=0.05)
    assert warm.numbers["ece"] == pytest.approx(abs(cold.score - 1 / 6), abs=0.01)
    np.testing.assert_allclose(softmax(scores).sum(axis=1), 1)


def test_the_table_of_classes_by_hand():
    scores = np.float32([[3, 1, 0], [2, 1, 0], [0, 3, 1], [4, 3, 1]])
    outcome = describe_scores(scores, np.array([0, 1, 1, 1]), ["a", "b", "c"], "mean_per_class")
    assert outcome.score == outcome.numbers["mean_per_class_recall"] == pytest.approx(2 / 3)
    assert "acc5" not in outcome.numbers  # of three classes
    rows = outcome.details["per_class"]
    assert [(r["class"], r["images"]) for r in rows] == [("a", 1), ("b", 3)]
    assert [r["recall"] for r in rows] == pytest.approx([1, 1 / 3])
    assert [r["precision"] for r in rows] == pytest.approx([1 / 3, 1])


def test_zero_shot_of_several_labels_is_11_point_precision():
    """Class 0 ranks right, wrong, right: 1 up to recall 0.5 (6 points), 2/3 beyond (5 points)."""
    scores = np.float32([[3, 1], [2, 5], [1, 0]])
    present = np.array([[True, False], [False, True], [True, False]])
    outcome = describe_scores(scores, present, ["a", "b"], "map_11_point")
    first = (6 * 1 + 5 * 2 / 3) / 11
    assert outcome.score == pytest.approx((first + 1) / 2)
    assert outcome.numbers["mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    of_classes = [row["map_11_point"] for row in outcome.details["per_class"]]
    assert of_classes == pytest.approx([first, 1])


@pytest.mark.parametrize("metric, expected", [("roc_auc", 3 / 4), ("mean_top1_top5", 3 / 4)])
def test_the_metric_of_a_data_set_is_its_score(metric, expected):
    """Of four pairs of a 1 and a 0 three are in order; two of four are named."""
    scores = np.float32([[0, 1], [0, 3], [0, 2], [0, -1]])
    outcome = describe_scores(scores, np.array([1, 1, 0, 0]), ["no", "yes"], metric)
    expected = {"roc_auc": 3 / 4, "mean_top1_top5": (3 / 4 + 1) / 2}[metric]
    assert outcome.score == outcome.numbers[metric] == pytest.approx(expected)


def test_any_of_the_labels_of_an_image_is_right():
    """The third image has no label and does not count; the second is named by a wrong class."""
    scores = np.float32([[3, 1, 2], [2, 5, 6], [1, 0, 0], [0, 1, 2]])
    present = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], bool)
    outcome = describe_scores(scores, present, ["a", "b", "c"], "real_accuracy")
    assert outcome.score == outcome.numbers["acc1"] == pytest.approx(2 / 3)
    recalls = [(row["class"], row["recall"]) for row in outcome.details["per_class"]]
    assert recalls == [("a", 1 / 2), ("b", pytest.approx(2 / 3)), ("c", 1)]


def make_pairs(wrong: int) -> Pairs:
    """Eight images, two captions each; the captions of one are nearer to the image of another."""
    zimg, owner = np.eye(8, dtype=np.float32), np.repeat(np.arange(8), 2)
    near = np.where(owner == 1, wrong, owner)
    return Pairs(zimg, zimg[near], [str(n) for n in range(16)], owner, np.arange(8))


def test_folds_are_measured_by_themselves():
    """The captions of image 1 are nearest to image 5: an error only where it stands beside it."""
    whole, halves = (measure_retrieval(make_pairs(5), folds) for folds in (1, 2))
    assert whole.numbers["image_retrieval_recall@1"] == pytest.approx(7 / 8)
    assert halves.details["folds"][1]["text_to_image_r1"] == 1
    with pytest.raises(UserError, match="8 images cannot be cut into 9 parts"):
        cut_pairs(make_pairs(5), 9)
    first, second = cut_pairs(make_pairs(5), 2)
    assert first.captions == [str(n) for n in range(8)] and second.number.tolist() == [4, 5, 6, 7]
    assert second.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    mean = np.mean([part["text_to_image_r1"] for part in halves.details["folds"]])
    assert halves.numbers["image_retrieval_recall@1"] == pytest.approx(mean)
    assert whole.score == pytest.approx(np.mean(list(whole.numbers.values())[:6]))


def test_of_classes_with_one_text_none_is_right_or_the_first():
    """Classes 1 and 3 are both called missile; each has one image, which is nearest to its text."""
    ztxt = np.float32([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]])
    source = ArraySource(np.zeros((4, 2, 2, 3), np.uint8), [[]] * 4, np.arange(4, dtype=np.int32))
    images = EmbeddedImages(ztxt.copy(), ztxt, np.arange(4), np.ones(4, bool))
    test = LabeledSplit("mini test", source, images, np.arange(4))
    given = (
        test,
        ClassList.from_names(["cat", "missile", "dog", "missile "]),
        ztxt,
        "accuracy",
        None,
    )
    wrong, first = (measure_zero_shot(*given, which) for which in ("wrong", "first"))
    assert (wrong.numbers["acc1"], first.numbers["acc1"]) == (2 / 4, 3 / 4)
    assert [row["recall"] for row in first.details["per_class"]] == [1, 1, 1, 0]
    assert wrong.details["equal_classes"] == first.details["equal_classes"] == 1
    apart = given[0], given[1], np.float32(np.eye(4)[:, :3] + 0.1), *given[3:]
    assert measure_zero_shot(*apart, "first").numbers == measure_zero_shot(*apart, "wrong").numbers
    with pytest.raises(UserError, match="equal_classes = 'second' is unknown; known: wrong, first"):
        TaskSettings(equal_classes="second")


@pytest.mark.parametrize("count, metric", [(3, "accuracy"), (5, "mean_per_class"), (2, "roc_auc")])
def test_numbers_are_named_before_they_are_measured(count, metric):
    scores, label = np.random.default_rng(0).normal(size=(20, count)), np.arange(20) % count
    outcome = describe_scores(np.float32(scores), label, [str(c) for c in range(count)], metric)
    assert set(list_numbers("zero_shot", metric, count, TaskSettings())) == set(outcome.numbers)
