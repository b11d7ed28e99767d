"""Choosing tags by their logits, and scores of the choice when not everything is known.

An image has any number of tags. In partially labeled sets, such as OpenImages, people have verified
the presence or absence of some tags of an image, and not the others: these are unknown there and do
not count, as if the image had not been tested for them.
"""

import numpy as np
from jaxtyping import Bool, Float

from big_align.core.errors import UserError


def check_choice(threshold: float, top_k: int) -> None:
    """Raises a ValueError if a threshold is not a probability, or a number of tags is negative."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold = {threshold} is not in (0, 1)")
    if top_k < 0:
        raise ValueError(f"top_k = {top_k} must be a number of tags, or 0 to go by the threshold")


def choose_tags(
    logits: Float[np.ndarray, "n c"],
    known: Bool[np.ndarray, "n c"],
    threshold: float,
    top_k: int = 0,
) -> Bool[np.ndarray, "n c"]:
    """Chooses the tags of each image among those that are known for it.

    They are those with a probability above the threshold, or the `top_k` of `choose_top`.
    """
    if top_k:
        return choose_top(logits, known, top_k)
    return known & (logits > np.log(threshold / (1 - threshold)))


def choose_top(
    scores: Float[np.ndarray, "n c"], known: Bool[np.ndarray, "n c"], count: int
) -> Bool[np.ndarray, "n c"]:
    """Chooses the tags with the highest scores among those known for an image, at most `count`.

    Of equal scores the first is chosen, that of the more frequent tag in a tag list.
    """
    best = np.argsort(np.where(known, -scores, np.inf), axis=1, kind="stable")[:, :count]
    chosen = np.zeros(known.shape, bool)
    np.put_along_axis(chosen, best, True, axis=1)
    return chosen & known


CHOICES = tuple(
    f"{mean}_{score}" for mean in ("overall", "class") for score in ("precision", "recall", "f1")
)
"""What `measure_choice` returns."""


def measure_choice(
    chosen: Bool[np.ndarray, "n c"],
    present: Bool[np.ndarray, "n c"],
    known: Bool[np.ndarray, "n c"],
) -> dict[str, float]:
    """Returns precision, recall and F1, over all tags together and as means over tags.

    The means (CP, CR) are over the tags that some image is known to have; a tag that is never
    chosen has precision 0. CF1 is the harmonic mean of the two means, as OF1 is that of the overall
    precision and recall (OP, OR). Tags that are not known of an image are neither right nor wrong.
    """
    chosen, present = chosen & known, present & known
    right, chosen, present = (x.sum(axis=0) for x in (chosen & present, chosen, present))
    some = present > 0
    scores = {
        "overall_precision": fraction(right.sum(), chosen.sum()),
        "overall_recall": fraction(right.sum(), present.sum()),
        "class_precision": fraction((right / np.maximum(chosen, 1))[some].sum(), some.sum()),
        "class_recall": fraction((right / np.maximum(present, 1))[some].sum(), some.sum()),
    }
    for name in ("overall", "class"):
        precision, recall = scores[f"{name}_precision"], scores[f"{name}_recall"]
        scores[f"{name}_f1"] = fraction(2 * precision * recall, precision + recall)
    return scores


def average_precisions(
    scores: Float[np.ndarray, "n c"],
    present: Bool[np.ndarray, "n c"],
    known: Bool[np.ndarray, "n c"],
) -> Float[np.ndarray, " c"]:
    """Returns the average precision of each tag; NaN for one that no image is known to have.

    It is the mean, over the images with the tag, of the precision down to each of them in the order
    of the scores, without interpolation. Images that tie are found together. Those of which the tag
    is not known are left out.
    """
    from sklearn.metrics import average_precision_score

    averages = np.full(scores.shape[1], np.nan)
    for tag in np.flatnonzero((present & known).any(axis=0)):
        rows = known[:, tag]
        averages[tag] = average_precision_score(present[rows, tag], scores[rows, tag])
    return averages


def mean_average_precision(
    scores: Float[np.ndarray, "n c"],
    present: Bool[np.ndarray, "n c"],
    known: Bool[np.ndarray, "n c"],
) -> float:
    """Returns mAP: the mean of `average_precisions` over the tags that some image has."""
    averages = average_precisions(scores, present, known)
    if np.isnan(averages).all():
        raise UserError("no image is known to have any of the tags: the tag list does not fit them")
    return float(np.nanmean(averages))


def fraction(part: float | np.integer, whole: float | np.integer) -> float:
    """Returns the quotient; 0 if `whole` is 0."""
    return float(part / whole) if whole else 0.0
