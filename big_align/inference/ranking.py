"""Finds which of many embeddings are nearest to others."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from big_align.errors import UserError


class Ranking(NamedTuple):
    """The nearest candidates of each query, the nearest first.

    Attributes:
      order: numbers of the candidates.
      cosine: their cosines, in this order.
    """

    order: Int[np.ndarray, "q k"]
    cosine: Float[np.ndarray, "q k"]


def read_embeddings(given: Any) -> Float[np.ndarray, "*n d"] | None:
    """Returns embeddings that a caller gave, at unit length; None if these are images or texts.

    Floats in a row or in rows are embeddings. A row of zeros, such as that of a broken image in a
    file, or of no finite length becomes NaN.
    """
    if not (hasattr(given, "__array__") and hasattr(given, "dtype")):
        return None
    rows = np.asarray(given)
    if rows.dtype.kind != "f" or rows.ndim not in (1, 2):
        return None
    rows = rows.astype(np.float32)
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where((0 < length) & (length < np.inf), length, np.float32(np.nan))


def rank_by_cosine(
    queries: Float[np.ndarray, "q d"], candidates: Float[np.ndarray, "n _"], k: int | None = None
) -> Ranking:
    """Ranks candidates by their cosines with each query.

    Args:
      queries: embeddings of unit length.
      candidates: embeddings of unit length; rows of NaN come last.
      k: how many to return for each query; None for all.

    Raises:
      UserError: `k` is below 1, or the embeddings differ in width.
    """
    if k is not None and k < 1:
        raise UserError(f"k is {k}; it must be at least 1")
    cosine = compute_cosines(queries, candidates)
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return Ranking(order, np.take_along_axis(cosine, order, axis=1))


def compute_cosines(
    first: Float[np.ndarray, "q d"], second: Float[np.ndarray, "n _"]
) -> Float[np.ndarray, "q n"]:
    """Returns the cosine of each embedding of unit length with each of several others.

    Raises:
      UserError: the embeddings differ in width.
    """
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"embeddings of {first.shape[1]} and of {second.shape[1]} numbers cannot be compared; "
            "both must come from one model"
        )
    return first @ second.T
