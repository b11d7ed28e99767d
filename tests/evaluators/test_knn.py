"""Neighbors of small cases by hand; order, chunks and length of vectors change nothing."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.evaluators import knn
from big_align.evaluators.knn import KNN, rank_of_label
from tests.evaluators.colors import ColorEmbedder, make_source

# Colors 0 to 4 lie on a quarter of a circle, at these degrees.
DEGREES = np.radians([0.0, 10, 25, 60, 90])
CIRCLE = np.stack([np.cos(DEGREES), np.sin(DEGREES)], axis=1)


def test_ranks_and_recalls_by_hand():
    train = make_source([0, 1, 3, 4], [7, 8, 8, 9])
    # Color 2 is nearest to 1 (8), then 0 (7), 3 (8), 4 (9).
    test = make_source([2, 2, 2], [7, 8, 9])
    result = KNN(test, "resize(2)", train, ks=(1, 2, 4))(ColorEmbedder(CIRCLE))
    assert result == pytest.approx({"r1": 1 / 3, "r2": 2 / 3, "r4": 1})


def test_classes_are_matched_by_name():
    """Both sets number the classes that they have, as folders do; the test set lacks the first."""
    train = make_source([0, 1, 3, 4], [0, 1, 1, 2], class_names=("ant", "bee", "cow"))
    test = make_source([2, 2], [0, 1], class_names=("bee", "cow"))
    result = KNN(test, "resize(2)", train, ks=(1, 2, 4))(ColorEmbedder(CIRCLE))
    assert result == pytest.approx({"r1": 1 / 2, "r2": 1 / 2, "r4": 1})
    with pytest.raises(UserError, match="'ant', which is no class of knn.train_source"):
        KNN(train, "resize(2)", test)


def test_without_a_training_set_no_image_is_its_own_neighbor():
    # The two of color 0 are each other's neighbors; the 3 is alone in its class; colors 1 and 2
    # are nearest to each other but of classes 0 and 1.
    source = make_source([0, 0, 1, 2, 3], [0, 0, 0, 1, 2])
    result = KNN(source, "resize(2)", ks=(1, 2, 100))(ColorEmbedder(CIRCLE))
    assert result == pytest.approx({"r1": 3 / 5, "r2": 3 / 5, "r100": 3 / 5})


def test_duplicates_of_another_class_count_against_the_query():
    train = make_source([0, 0, 1], [1, 0, 0])
    result = KNN(make_source([0], [0]), "resize(2)", train, ks=(1, 2))(ColorEmbedder(CIRCLE))
    assert result == {"r1": 0, "r2": 1}
    ones = np.ones((20, 4), np.float32)
    assert rank_of_label(ones, np.arange(20) % 2, ones, np.arange(20) % 2).min() == 10


def test_order_chunks_and_lengths_change_no_rank(monkeypatch):
    rng = np.random.default_rng(0)
    queries, candidates = rng.normal(size=(23, 8)), rng.normal(size=(50, 8))
    query_label, label = rng.integers(0, 9, 23), rng.integers(0, 8, 50)
    expected = rank_of_label(queries, query_label, candidates, label)
    assert (expected[query_label == 8] == knn.NOWHERE).all() and (query_label == 8).any()
    order, other = rng.permutation(50), rng.permutation(23)
    monkeypatch.setattr(knn, "COMPARISONS", 50 * 4)
    permuted = rank_of_label(
        7 * queries[other],
        query_label[other],
        candidates[order] * rng.uniform(1, 9, (50, 1)),
        label[order],
    )
    np.testing.assert_array_equal(permuted, expected[other])


def test_unreadable_images_and_padding_do_not_count():
    train = make_source([0, 4, 4], [0, 0, 1], broken=[1])
    test = make_source([4, 0, 0], [1, 0, 1], broken=[2])
    for batch_size in (1, 2, 4):
        evaluate = KNN(test, "resize(2)", train, max_broken_fraction=0.5)
        assert evaluate(ColorEmbedder(CIRCLE, batch_size)) == {"r1": 1}


def test_bad_input_is_named():
    good, embedder = make_source([0, 1], [0, 1]), ColorEmbedder(CIRCLE)
    with pytest.raises(ValueError, match="knn.source: 1 of 2 examples, colors: 1 the first, with"):
        KNN(make_source([0, 1], [0, -1]), "resize(2)", good)(embedder)
    with pytest.raises(ValueError, match="1 classes, 5 among them, have no example in knn.train"):
        KNN(make_source([0, 1], [0, 5]), "resize(2)", good)(embedder)
    with pytest.raises(ValueError, match="colors: 1 the first, whose embedding is not finite"):
        KNN(good, "resize(2)")(ColorEmbedder([[1, 0], [np.nan, 1]]))
    with pytest.raises(ValueError, match="what = 'pixels' is unknown; known: features, embedding"):
        KNN(good, "resize(2)", what="pixels")
    with pytest.raises(ValueError, match=r"ks = \(0,\)"):
        KNN(good, "resize(2)", ks=(0,))
