"""What is equal but for rounding: one definition of a tie for all recalls and accuracies."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num

TOLERANCE = 1e-6
"""The difference of equal scores: several float32 roundings of a product of unit-length rows.

Products of equal rows differ in the last digits, since a library sums some columns in another
order than others.
"""


def reaches(scores: Any, best: Any) -> Any:
    """Returns which scores are as high as the best right one or higher, or are not comparable.

    Those are counted against a query: equal scores, so that embeddings that have collapsed to a
    point score nothing, and NaN.
    """
    return ~(scores < _lower(best))


def _lower(scores: Any) -> Any:
    """Returns the lowest scores that are equal to the given ones but for rounding."""
    return scores - TOLERANCE * (1 + abs(scores))


def rank_of_class(
    scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n"]:
    """Returns how many wrong classes have the score of the right one or a higher one."""
    own = np.take_along_axis(scores, label[:, None], axis=1)
    return reaches(scores, own).sum(axis=1) - 1


def take_class(
    scores: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n"]:
    """Returns the class that each example is taken for; of two that tie, the wrong one."""
    own = np.take_along_axis(scores, label[:, None], axis=1)
    lowered = np.float64(scores)
    np.put_along_axis(lowered, label[:, None], _lower(own), axis=1)
    return lowered.argmax(axis=1)


def group_equal(rows: Float[np.ndarray, "c d"]) -> Int[np.ndarray, "c"]:
    """Returns a number for each row that only equal rows share, from 0 on."""
    return np.unique(rows.round(6), axis=0, return_inverse=True)[1]


def number_equal(rows: Float[np.ndarray, "c d"]) -> Int[np.ndarray, "c"]:
    """Returns how many rows before each one are equal to it."""
    group = group_equal(rows)
    order = np.argsort(group, kind="stable")
    _, first = np.unique(group[order], return_index=True)
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.arange(len(rows)) - first[group[order]]
    return numbers


def number_levels(values: Num[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Returns numbers in the order of the values, the same for equal values, NaN for NaN."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    levels = np.zeros(len(values))
    levels[order[1:]] = np.cumsum(is_above(ordered[1:], ordered[:-1]))
    return np.where(np.isnan(values), np.nan, levels)


def is_above(scores: Num[np.ndarray, "..."], others: Any) -> Bool[np.ndarray, "..."]:
    """Returns which right scores are higher than the highest of wrong ones."""
    return ~reaches(others, scores)
