"""Which classes are mistaken for which."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from big_align.core.ties import take_class
from big_align.evaluators.exhibits.exhibit import Confusion

MOST = 20
"""Number of classes to show."""


def show_confusion(
    scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, " n"], names: Sequence[str]
) -> list[Confusion]:
    """Counts which class each image is classified as; of many classes, the most confused ones.

    A tie with the right class is an error.
    """
    taken = take_class(scores, label)
    shown = choose_classes(taken, label, len(names))
    place = np.full(len(names), len(shown))
    place[shown] = np.arange(len(shown))
    counts = np.zeros((len(shown), len(shown) + 1), np.int64)
    ours = place[label] < len(shown)
    np.add.at(counts, (place[label[ours]], place[taken[ours]]), 1)
    note = "Rows are the classes of images, columns what they are taken for; errors are orange."
    if len(shown) < len(names):
        note += f" Of {len(names):,} classes the {len(shown)} in the most frequent confusions."
    return [Confusion("Confused classes", note, [names[c] for c in shown], counts)]


def choose_classes(
    taken: Int[np.ndarray, " n"], label: Int[np.ndarray, " n"], count: int
) -> list[int]:
    """Returns up to MOST classes, in order: all, or those of the most frequent confusions."""
    if count <= MOST:
        return list(range(count))
    wrong = taken != label
    pairs, times = np.unique(label[wrong] * count + taken[wrong], return_counts=True)
    chosen: dict[int, None] = {}
    for pair in pairs[np.argsort(-times, kind="stable")].tolist():
        new = dict.fromkeys(divmod(pair, count))
        if len(chosen | new) <= MOST:
            chosen |= new
    for other in np.unique(label).tolist():  # if fewer classes are confused
        if len(chosen) < MOST:
            chosen.setdefault(other)
    return sorted(chosen)
