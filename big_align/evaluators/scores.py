"""Scores of classifiers, as required for the data sets of CLIP's linear probes (MLCD, Table 11)."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, check_known
from big_align.core.ties import is_above
from big_align.evaluators.zero_shot import measure_accuracy

Score = Callable[[np.ndarray, np.ndarray], float]


def accuracy(scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]) -> float:
    """Returns the fraction of examples whose class alone has the highest score."""
    return measure_accuracy(scores, label)["top1"]


def mean_per_class(scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]) -> float:
    """Returns the mean of the classes' accuracies (Aircraft, Pets, Caltech101, Flowers)."""
    return measure_accuracy(scores, label)["mean_per_class"]


def real_accuracy(scores: Float[np.ndarray, "n c"], present: Bool[np.ndarray, "n c"]) -> float:
    """Returns the fraction of examples whose best class is one of theirs (ImageNet ReaL).

    Examples without a class are left out, as in Beyer et al. 2020. A tie with a wrong class counts
    as wrong.
    """
    there = present.any(axis=1)
    if not there.any():
        raise UserError("real_accuracy: no example has a class")
    right = np.where(present, scores, -np.inf).max(axis=1)
    wrong = np.where(present, -np.inf, scores).max(axis=1)
    return float(is_above(right, wrong)[there].mean())


def mean_top1_top5(scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]) -> float:
    """Returns the mean of top-1 and top-5 accuracy (Kinetics700)."""
    result = measure_accuracy(scores, label)
    return (result["top1"] + result["top5"]) / 2


def roc_auc(scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]) -> float:
    """Returns the area under the ROC curve of class 1 against class 0 (Hateful Memes)."""
    from sklearn.metrics import roc_auc_score

    if scores.shape[1] != 2 or len(np.unique(label)) != 2:
        raise UserError(
            f"roc_auc is for two classes with examples of both; there are {scores.shape[1]} "
            f"classes, {len(np.unique(label))} of them with examples: use another score"
        )
    return float(roc_auc_score(label, scores[:, 1] - scores[:, 0]))


def map_11_point(scores: Float[np.ndarray, "n c"], present: Bool[np.ndarray, "n c"]) -> float:
    """Returns the mean over classes of the 11-point average precision (VOC2007).

    That of a class is the mean, over recalls 0, 0.1, ..., 1, of the best precision at that recall
    or a higher one (Everingham et al. 2010, §4.2). Examples that tie are found together.
    """
    from sklearn.metrics import precision_recall_curve

    if not present.any(axis=0).all():
        missing = np.flatnonzero(~present.any(axis=0))
        raise UserError(f"map_11_point: class {missing[0]} has no example; leave it out")
    averages = []
    for column in range(scores.shape[1]):
        precision, recall, _ = precision_recall_curve(present[:, column], scores[:, column])
        # The last point, at recall 0 and precision 1, is added by the library: nothing is found
        # there.
        reached = recall[:-1] >= np.arange(11)[:, None] / 10
        averages.append(np.where(reached, precision[:-1], 0).max(axis=1).mean())
    return float(np.mean(averages))


BINS = 15
"""Number of confidence bins in the expected calibration error (Guo et al. 2017)."""


def calibration_error(
    probability: Float[np.ndarray, "n c"], right: Bool[np.ndarray, "n"]
) -> tuple[float, list[dict[str, int | float]]]:
    """Returns the expected calibration error, and the bins that it is computed from.

    Confidence is the largest probability of an example. Its range is divided into 15 bins of equal
    width; the error is the mean, over examples, of the distance between the accuracy and the
    confidence of a bin. A bin includes its upper end; those without examples are left out. The
    class of an example is right if it alone has the highest score.
    """
    confidence = probability.max(axis=1)
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    bins = [
        {
            "bin": number,
            "images": int(mine.sum()),
            "accuracy": float(right[mine].mean()),
            "confidence": float(confidence[mine].mean()),
        }
        for number in range(BINS)
        if (mine := place == number).any()
    ]
    gaps = (b["images"] * abs(b["accuracy"] - b["confidence"]) for b in bins)
    return sum(gaps) / len(right), bins


SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "mean_per_class": mean_per_class,
    "mean_top1_top5": mean_top1_top5,
    "roc_auc": roc_auc,
    "map_11_point": map_11_point,
    "real_accuracy": real_accuracy,
}

OF_SEVERAL_LABELS = ("map_11_point", "real_accuracy")
"""Scores of examples with any number of labels; the others are for examples with one each."""


def lookup_score(name: str) -> Score:
    """Returns a score by name; raises a ValueError if there is none."""
    check_known("score", name, SCORES)
    return SCORES[name]
