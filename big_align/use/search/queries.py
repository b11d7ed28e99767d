"""Queries of several images and texts, which are added and subtracted."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from big_align.core.errors import UserError

TEXT_WEIGHT = 2.0
"""The weight of a text beside an image, which has 1: what ALIGN found best (footnote 4)."""
MINUS = ("-", "\N{MINUS SIGN}")


def split_sign(text: str) -> tuple[str, float]:
    """Splits `-cars` into `cars` and -1; another text has the sign 1."""
    sign = -1.0 if text.strip().startswith(MINUS) else 1.0
    words = text.strip()[1:].strip() if sign < 0 else text.strip()
    if not words:
        raise UserError(f"the query has an empty text ({text!r}); write what is to be found")
    return words, sign


def choose_weights(
    texts: int, images: int, weights: Sequence[float | int] | None = None
) -> list[float | int]:
    """Returns the weights of texts, then those of images, as the user gave them.

    None weighs all alike, except texts beside images, which count twice.
    """
    count = texts + images
    if not count:
        raise UserError("the query is empty: give a text or an image")
    if weights is None:
        return [TEXT_WEIGHT if images else 1.0] * texts + [1.0] * images
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"weights = {weights!r}: give a list of numbers, one for each text and image"
        ) from error
    if len(numbers) != count:
        raise UserError(
            f"there are {len(numbers)} weights for {texts} texts and {images} images; give one "
            "for each, those of the texts first"
        )
    if not np.isfinite(numbers).all():
        raise UserError(f"weights {list(weights)}: each must be a finite number")
    return list(weights)


def combine(
    vectors: Float[np.ndarray, "p d"], weights: Sequence[float | int]
) -> Float[np.ndarray, "1 d"]:
    """Returns the direction of a weighted sum of embeddings (ALIGN, Section 7)."""
    total = np.asarray(weights, np.float64) @ vectors
    length = np.linalg.norm(total)
    if not length > 1e-6 * np.abs(weights).sum():
        raise UserError("the weighted parts of the query cancel each other; change the weights")
    return np.float32(total / length)[None]


def check_vector(vector: Float[np.ndarray, "*one d"], dim: int) -> Float[np.ndarray, "1 d"]:
    """Returns an embedding of an index of this width as a query, at unit length."""
    vector = np.atleast_2d(vector)
    length = np.linalg.norm(vector)
    if vector.shape != (1, dim) or not 0 < length < np.inf:
        raise UserError(
            f"the query is an array {list(vector.shape)} of length {length:g}; it must be one "
            f"embedding of {dim} finite numbers, which are not all 0"
        )
    return np.float32(vector / length)
