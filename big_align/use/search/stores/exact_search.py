"""The nearest of many embeddings, found by comparing with all of them, in blocks."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

BLOCK = 16384
"""Rows that are compared at a time: they stay in a cache while they are converted to float32."""


def search_exactly(
    queries: Float[np.ndarray, "q d"],
    vectors: Any,
    k: int,
    rows: Int[np.ndarray, "m"] | None = None,
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Finds the rows with the largest dot products; equal ones in the order of the rows.

    The vectors are an array [n d] of any float type, which may be memory-mapped; `rows` are those
    to compare with, ascending. Returns numbers of rows, the nearest first, and their products.
    """
    count = len(vectors) if rows is None else len(rows)

    def read_blocks() -> Iterator[tuple[np.ndarray, Any]]:
        for first in range(0, count, BLOCK):
            end = min(first + BLOCK, count)
            numbers = np.arange(first, end) if rows is None else rows[first:end]
            yield numbers, vectors[first:end] if rows is None else vectors[numbers]

    return search_blocks(queries, read_blocks(), k)


def search_blocks(
    queries: Float[np.ndarray, "q d"], blocks: Iterable[tuple[np.ndarray, Any]], k: int
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Finds the rows with the largest dot products among blocks of ascending numbers and rows."""
    best = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
    for numbers, block in blocks:
        score = queries @ np.asarray(block, np.float32).T
        numbers = np.broadcast_to(numbers, score.shape)
        if best[1].shape[1] == k:  # a row that only equals the worst one found comes after it
            numbers, score = _keep(score > best[1][:, -1:], numbers, score)
        elif score.shape[1] > k:
            kth = np.partition(score, -k, axis=1)[:, -k, None]
            numbers, score = _keep(score >= kth, numbers, score)
        numbers = np.concatenate([best[0], numbers], axis=1)
        score = np.concatenate([best[1], score], axis=1)
        order = np.argsort(-score, axis=1, kind="stable")[:, :k]
        best = tuple(np.take_along_axis(x, order, axis=1) for x in (numbers, score))
    return best


def _keep(
    mask: Bool[np.ndarray, "q b"], numbers: Int[np.ndarray, "q b"], score: Float[np.ndarray, "q b"]
) -> tuple[Int[np.ndarray, "q w"], Float[np.ndarray, "q w"]]:
    """Moves the kept values of each row to its beginning; the rest is cut off, or -inf."""
    rows, places = np.nonzero(mask)
    counts = np.bincount(rows, minlength=len(mask))
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.zeros((len(mask), int(counts.max(initial=0))), np.int64)
    values = np.full(kept.shape, -np.inf, np.float32)
    kept[rows, columns], values[rows, columns] = numbers[rows, places], score[rows, places]
    return kept, values


def rescore(
    queries: Float[np.ndarray, "q d"],
    vectors: Any,
    candidates: Int[np.ndarray, "q c"],
    k: int,
    mask: Bool[np.ndarray, "n"] | None = None,
) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
    """Orders the candidates of each query by their cosines; -1 is none, and -inf its cosine.

    Rows of float16 are not quite of unit length, so their dot products are no cosines. The mask is
    True for rows that may be found.
    """
    rows = np.asarray(vectors[np.maximum(candidates, 0)], np.float32)
    score = np.matmul(rows, queries[:, :, None])[:, :, 0]
    score /= np.maximum(np.linalg.norm(rows, axis=2), 1e-12)
    there = candidates >= 0 if mask is None else (candidates >= 0) & mask[candidates]
    score = np.where(there, score, np.float32(-np.inf))
    order = np.lexsort((candidates, -score), axis=1)[:, :k]
    return tuple(np.take_along_axis(x, order, axis=1) for x in (candidates, score))
