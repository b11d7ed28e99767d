"""Results of measurements: numbers, tables of classes, and confusions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import softmax

from big_align.core.ties import rank_of_class, take_class
from big_align.evaluators.exhibits.confusion import show_confusion
from big_align.evaluators.exhibits.exhibit import Confusion
from big_align.evaluators.scores import (
    BINS,
    OF_SEVERAL_LABELS,
    calibration_error,
    lookup_score,
    map_11_point,
    real_accuracy,
)
from big_align.evaluators.tag_scores import mean_average_precision
from big_align.evaluators.zero_shot import measure_accuracy


class Outcome(NamedTuple):
    """The result of a measurement."""

    numbers: dict[str, float]  # by column name
    score: float  # the number that tables in papers report
    details: dict[str, Any]  # for JSON: `per_class`, `calibration`, `folds`
    confusions: Sequence[Confusion] = ()  # which classes are mistaken for which
    metric: str = ""  # of the score, if it is not that of the data set


def describe_scores(
    scores: Float[np.ndarray, "n c"],
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
    names: Sequence[str],
    metric: str,
    temperature: float = 1.0,
) -> Outcome:
    """Returns all numbers of a classifier, its table of classes and its confusions.

    A label is the class of an example, or whether it has each class; `metric` names the number that
    is the score, and scores are divided by the temperature to get logits.
    """
    if metric in OF_SEVERAL_LABELS:
        return _describe_several(scores, label, names, metric)
    found, count = measure_accuracy(scores, label), scores.shape[1]
    numbers = {"acc1": found["top1"]}
    if count >= 5:  # as in CLIP_benchmark: with fewer, the top 5 are all classes
        numbers["acc5"] = found["top5"]
    numbers["mean_per_class_recall"] = found["mean_per_class"]
    score = lookup_score(metric)(scores, label)
    if metric not in ("accuracy", "mean_per_class"):
        numbers[metric] = score
    numbers["ece"], bins = calibration_error(
        softmax(np.float64(scores) / temperature, axis=1), rank_of_class(scores, label) == 0
    )
    taken, per_class = take_class(scores, label), []
    for c in np.unique(label).tolist():
        mine = label == c
        right = measure_accuracy(scores[mine], label[mine])["top1"]
        asked = int((taken == c).sum())
        precision = float((label[taken == c] == c).mean()) if asked else None
        row = {"class": names[c], "label": c, "images": int(mine.sum()), "recall": right}
        per_class.append(row | {"precision": precision})
    details = {"per_class": per_class, "ece_bins": BINS, "calibration": bins}
    return Outcome(numbers, score, details, show_confusion(scores, label, names))


def _describe_several(
    scores: Float[np.ndarray, "n c"],
    present: Bool[np.ndarray, "n c"],
    names: Sequence[str],
    metric: str,
) -> Outcome:
    """Does what `describe_scores` does, if examples have any number of classes."""
    if metric == "real_accuracy":
        return _describe_real(scores, present, names)
    everywhere = np.ones_like(present)
    numbers = {
        "mean_average_precision": mean_average_precision(scores, present, everywhere),
        "map_11_point": map_11_point(scores, present),
    }
    per_class = [
        {
            "class": name, "label": c, "images": int(present[:, c].sum()),
            "map_11_point": map_11_point(scores[:, [c]], present[:, [c]]),
        }
        for c, name in enumerate(names)
    ]  # fmt: skip
    return Outcome(numbers, numbers[metric], {"per_class": per_class})


def _describe_real(
    scores: Float[np.ndarray, "n c"], present: Bool[np.ndarray, "n c"], names: Sequence[str]
) -> Outcome:
    """Does what `describe_scores` does, if any class of an example is right (ReaL)."""
    accuracy = real_accuracy(scores, present)
    per_class = []
    for c in np.flatnonzero(present.any(axis=0)).tolist():
        mine = present[:, c]
        right = real_accuracy(scores[mine], present[mine])
        row = {"class": names[c], "label": c, "images": int(mine.sum()), "recall": right}
        per_class.append(row)
    return Outcome({"acc1": accuracy}, accuracy, {"per_class": per_class})
