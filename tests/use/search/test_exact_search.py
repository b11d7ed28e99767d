"""Comparing in blocks finds what comparing with all at once finds."""

import numpy as np
import pytest

from big_align.use.search.stores import exact_search
from big_align.use.search.stores.exact_search import rescore, search_exactly


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact_search, "BLOCK", 7)


def draw(count, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(count, 5)).astype(dtype)


@pytest.mark.parametrize("count, k", [(1, 1), (6, 3), (7, 7), (50, 4), (50, 60)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_it_is_the_order_of_all_dot_products(count, k, dtype):
    vectors, queries = draw(count, dtype=dtype), draw(3, 1)
    found, score = search_exactly(queries, vectors, k)
    all_scores = queries @ np.float32(vectors).T
    expected = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(score, np.take_along_axis(all_scores, expected, 1), atol=1e-6)


def test_some_rows_are_a_search_among_a_slice():
    vectors, queries = draw(40), draw(3, 1)
    rows = np.flatnonzero(np.random.default_rng(2).random(40) < 0.5)
    found, score = search_exactly(queries, vectors, 5, rows)
    expected, of_slice = search_exactly(queries, vectors[rows], 5)
    np.testing.assert_array_equal(found, rows[expected])
    np.testing.assert_array_equal(score, of_slice)
    assert search_exactly(queries, vectors, 5, rows[:0])[0].shape == (3, 0)


def test_equal_rows_are_found_in_their_order():
    vectors = np.ones((40, 5), np.float32)
    vectors[3] = 2
    assert search_exactly(vectors[:1], vectors, 5)[0].tolist() == [[3, 0, 1, 2, 4]]


def test_candidates_are_ordered_by_cosines_whatever_their_lengths():
    vectors, queries = draw(40, dtype=np.float16), draw(3, 1)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    candidates = np.random.default_rng(2).permuted(np.tile(np.arange(40), (3, 1)), axis=1)[:, :20]
    found, score = rescore(queries, vectors, candidates, 5)
    rows = np.float32(vectors)
    cosine = queries @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
    for query in range(3):
        order = sorted(candidates[query], key=lambda row, query=query: -cosine[query, row])[:5]
        assert found[query].tolist() == order
        np.testing.assert_allclose(score[query], cosine[query, order], atol=1e-6)
