"""Finds which of many embeddings are nearest to others."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from big_align.core.errors import UserError

Classes = list[tuple[str, float]]
"""Names with their probabilities, the most probable first."""


class Ranking(NamedTuple):
    """The nearest candidates of each query, the nearest first.

    Attributes:
      order: numbers of the candidates, int [q k].
      cosine: their cosines, in this order, float32 [q k].
    """

    order: Int[np.ndarray, "q k"]
    cosine: Float[np.ndarray, "q k"]


def read_embeddings(given: Any) -> Float[np.ndarray, "*n d"] | None:
    """Returns embeddings that a caller gave, at unit length; None if these are images or texts.

    Floats in a row or in rows are embeddings: an array of any float type, or a list of rows, as a
    column of a Parquet file becomes. A row that is null, or of zeros, as files have for broken
    images, or of no finite length becomes NaN.
    """
    rows = _find_floats(given)
    if rows is None or not rows.ndim:
        return None
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where((0 < length) & (length < np.inf), length, np.float32(np.nan))


def _find_floats(given: Any) -> Float[np.ndarray, "..."] | None:
    """Returns a number, a row or rows of floats as an array; None for all else."""
    if isinstance(given, list | tuple):
        return _stack(given)
    if not (isinstance(given, float) or hasattr(given, "__array__") and hasattr(given, "dtype")):
        return None
    array = np.asarray(given)
    if array.dtype == object and array.ndim == 1:
        return _stack(array)
    floats = jnp.issubdtype(array.dtype, jnp.floating) and array.ndim <= 2
    return array.astype(np.float32) if floats else None


def _stack(given: Iterable[Any]) -> Float[np.ndarray, "..."] | None:
    first = _find_floats(next((one for one in given if one is not None), None))
    if first is None or first.ndim > 1:
        return None
    null = np.full_like(first, np.nan)
    try:
        return np.asarray([null if one is None else one for one in given], np.float32)
    except (TypeError, ValueError) as error:
        kind = f"embeddings of {len(first)} numbers" if first.ndim else "an embedding's numbers"
        raise UserError(f"a list that begins like {kind} must hold nothing else") from error


def rank_by_cosine(
    queries: Float[np.ndarray, "q d"], candidates: Float[np.ndarray, "n _"], k: int | None = None
) -> Ranking:
    """Ranks candidates by their cosines with each query; rows of NaN come last."""
    k = None if k is None else check_count(k)
    cosine = compute_cosines(queries, candidates)
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return Ranking(order, np.take_along_axis(cosine, order, axis=1))


def check_count(k: Any, most: int | None = None) -> int:
    """Returns how many are to be found, as an int; a UserError if it is none from 1 to `most`."""
    try:
        count = operator.index(k)
    except TypeError:
        count = 0
    if not 1 <= count <= (most or count):
        allowed = f"from 1 to {most}" if most else "from 1 on"
        raise UserError(f"k is {k!r}; it must be a whole number {allowed}")
    return count


def compute_cosines(
    first: Float[np.ndarray, "q d"], second: Float[np.ndarray, "n _"]
) -> Float[np.ndarray, "q n"]:
    """Returns the cosine of each embedding of unit length with each of several others."""
    if first.shape[1] != second.shape[1]:
        raise UserError(
            f"embeddings of {first.shape[1]} and of {second.shape[1]} numbers cannot be compared; "
            "both must come from one model"
        )
    return first @ second.T


def name_classes(
    names: Sequence[str], logits: Float[np.ndarray, "n c"], alone: bool
) -> Classes | list[Classes]:
    """Returns the classes of each image with their probabilities, the softmax of logits.

    An image without an embedding has logits of NaN, and no class. The classes of one that is alone
    are returned without a list around them.
    """
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    found = []
    for row in weights:
        probability = row / row.sum()
        order = np.argsort(-probability, kind="stable") if np.isfinite(row).all() else ()
        found.append([(names[n], float(probability[n])) for n in order])
    return found[0] if alone else found
