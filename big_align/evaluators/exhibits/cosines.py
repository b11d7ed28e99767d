"""Cosines of images with their own texts and with others: how far training moves them apart."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from big_align.evaluators.exhibits.exhibit import Distributions
from big_align.evaluators.exhibits.retrieval import Pairs

BINS = 100
EDGES = np.linspace(-1, 1, BINS + 1).round(3).tolist()


def show_cosines(
    title: str, groups: Sequence[str], values: Sequence[Float[np.ndarray, "_"]]
) -> Distributions:
    """Shows how the cosines of each group are distributed."""
    shares = []
    for each in values:
        bins = ((np.asarray(each, np.float64) + 1) / 2 * BINS).astype(int)
        shares.append(np.bincount(bins.clip(0, BINS - 1), minlength=BINS) / max(len(each), 1))
    note = "Curves are scaled to one height; the newest step is at the bottom."
    return Distributions(title, note, list(groups), EDGES, np.array([shares]), [])


def choose_others(own: Int[np.ndarray, "n"], count: int) -> Int[np.ndarray, "n"]:
    """Draws a wrong candidate for each query, given the right one and their number, two or more."""
    return (own + np.random.default_rng(0).integers(1, count, len(own))) % count


def show_pair_cosines(pairs: Pairs) -> list[Distributions]:
    """Shows the cosines of captions with their own image, and with one drawn among the others."""
    count = len(pairs.zimg)
    if count < 2:
        return []
    own, other = (
        np.einsum("nd,nd->n", pairs.ztxt, pairs.zimg[image])
        for image in (pairs.owner, choose_others(pairs.owner, count))
    )
    return [show_cosines("Cosines of captions with images", ["their own", "another"], [own, other])]


def show_class_cosines(
    similarity: Float[np.ndarray, "n c"], label: Int[np.ndarray, "n"]
) -> list[Distributions]:
    """Shows the cosines of images with their own class, and with one drawn among the others."""
    count = similarity.shape[1]
    if count < 2:
        return []
    own, other = (
        np.take_along_axis(similarity, classes[:, None], axis=1)[:, 0]
        for classes in (label, choose_others(label, count))
    )
    return [show_cosines("Cosines of images with classes", ["their own", "another"], [own, other])]
