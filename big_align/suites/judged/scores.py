"""Scores of choices and of ratings; ties never favor a model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num
from scipy.stats import rankdata

from big_align.core.errors import UserError
from big_align.core.ties import is_above, number_levels, reaches

SAMPLES = 1000
"""Number of bootstrap samples (Parekh et al. 2021)."""


def choose_text(cosine: Float[np.ndarray, "n t"]) -> Bool[np.ndarray, "n"]:
    """Returns which cases are right: the first text is nearer to the image than all others."""
    return is_above(cosine[:, 0], cosine[:, 1:].max(axis=1))


class Matched(NamedTuple):
    """Which cases of two images and two texts are right (Thrush et al. 2022)."""

    text: Bool[np.ndarray, "n"]  # each image is nearer to its own text than to the other
    image: Bool[np.ndarray, "n"]  # each text is nearer to its own image than to the other
    group: Bool[np.ndarray, "n"]  # both


def match_two(cosine: Float[np.ndarray, "n 2 2"]) -> Matched:
    """Returns which cases are right; rows are the two images of each."""
    first, second = cosine[:, 0, 0], cosine[:, 1, 1]
    text = is_above(first, cosine[:, 0, 1]) & is_above(second, cosine[:, 1, 0])
    image = is_above(first, cosine[:, 1, 0]) & is_above(second, cosine[:, 0, 1])
    return Matched(text, image, text & image)


def score_categories(
    right: Bool[np.ndarray, "n"], category: Sequence[str]
) -> dict[str, tuple[float, int]]:
    """Returns the accuracy and the number of cases of each category but "", sorted by name."""
    names = np.array(category)
    found = ((str(name), right[names == name]) for name in np.unique(names) if name)
    return {name: (float(mine.mean()), len(mine)) for name, mine in found}


def correlate_ranks(one: Num[np.ndarray, "n"], other: Num[np.ndarray, "n"]) -> float:
    """Returns Spearman's rank correlation; equal values share the mean of their ranks.

    If all values of one side are equal, so that no correlation is defined, it is 0.
    """
    ranks = [rankdata(number_levels(values)) for values in (one, other)]
    a, b = (each - each.mean() for each in ranks)
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / scale) if scale > 0 else 0.0


def bootstrap_correlation(
    cosine: Float[np.ndarray, "n"],
    rating: Float[np.ndarray, "n"],
    query: Int[np.ndarray, "n"],
) -> tuple[float, float]:
    """Returns mean and standard deviation of Spearman's correlation over samples of pairs.

    The ratings of pairs that share an item depend on each other. So each sample takes half of the
    queries, without repetition, and for each of them one of its pairs at random
    (Parekh et al. 2021).
    """
    order = np.argsort(query, kind="stable")
    _, starts, counts = np.unique(query[order], return_index=True, return_counts=True)
    if len(starts) < 4:
        raise UserError(f"{len(starts)} queries have ratings; half of them is no sample")
    rng, found = np.random.default_rng(0), []
    for _ in range(SAMPLES):
        chosen = rng.permutation(len(starts))[: len(starts) // 2]
        rows = order[starts[chosen] + rng.integers(counts[chosen])]
        found.append(correlate_ranks(cosine[rows], rating[rows]))
    return float(np.mean(found)), float(np.std(found))


def rank_of_positive(
    queries: Float[np.ndarray, "q d"],
    candidates: Float[np.ndarray, "k d"],
    positive: Int[np.ndarray, "p 2"],
    itself: bool = False,
    chunk: int = 1024,
) -> Int[np.ndarray, "_"]:
    """Returns, for each query that has a right candidate, how many wrong ones rank before the best.

    Wrong candidates that tie with it rank before it. Embeddings have unit length; `positive` are
    pairs of a query and a candidate. If queries and candidates are the same items, none is its own
    candidate.
    """
    positive = np.unique(positive, axis=0)
    if itself:
        positive = positive[positive[:, 0] != positive[:, 1]]
    asked, row = np.unique(positive[:, 0], return_inverse=True)
    row, ranks = row.reshape(-1), [np.zeros(0, np.int64)]
    for start in range(0, len(asked), chunk):
        mine = asked[start : start + chunk]
        similarity = queries[mine] @ candidates.T
        here = slice(*np.searchsorted(row, (start, start + chunk)))
        place, right = row[here] - start, similarity[row[here] - start, positive[here, 1]]
        best = np.full(len(mine), -np.inf, similarity.dtype)
        np.maximum.at(best, place, right)
        # all that are as near as the best right one, minus the right ones among them
        count = reaches(similarity, best[:, None]).sum(axis=1)
        count -= np.bincount(place[reaches(right, best[place])], minlength=len(mine))
        if itself:
            count -= reaches(similarity[np.arange(len(mine)), mine], best)
        ranks.append(count)
    return np.concatenate(ranks)
