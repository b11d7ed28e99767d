"""How strongly the cells of a matrix of confused classes are colored."""

import numpy as np
from jaxtyping import Float, Int

LEAST = 0.5
"""The least strength of an error, so that a single one is seen."""


def shade_confusion(
    counts: Int[np.ndarray, "c c_and_1"],
) -> Float[np.ndarray, "c c_and_1"]:
    """Returns strengths from 0 to 1, 0 of cells without an image.

    A right answer is as strong as its share of the class. Errors, which would be pale beside these,
    have a scale of their own: the largest share of them is 1.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    wrong = ~np.eye(*counts.shape, dtype=bool)
    worst = shares[wrong].max(initial=0) or 1
    errors = np.where(counts > 0, LEAST + (1 - LEAST) * shares / worst, 0)
    return np.where(wrong, errors, shares)
