"""Ridge regression: scikit-learn's solution, and the laws of a penalty."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from big_align.evaluators.classifiers.ridge_regression import SPREAD, RidgeClassifier


def draw(n, d, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    label = np.arange(n) % classes
    centers = rng.normal(size=(classes, d))
    return (centers[label] + rng.normal(size=(n, d)) * [3.0, *[1.0] * (d - 1)]), label


@pytest.mark.parametrize(("n", "d"), [(40, 7), (9, 30)], ids=["tall", "wide"])
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 300.0])
def test_it_is_scikit_learns_on_standardized_features(n, d, penalty):
    features, label = draw(n, d)
    test, _ = draw(20, d, seed=1)
    ours = RidgeClassifier(features.astype(np.float32), label, 3, penalty).scores(test)
    mean, deviation = features.mean(0), features.std(0) + SPREAD
    theirs = Ridge(alpha=penalty).fit((features - mean) / deviation, 2 * np.eye(3)[label] - 1)
    np.testing.assert_allclose(ours, theirs.predict((test - mean) / deviation), atol=1e-4)


def test_the_scale_of_a_feature_does_not_count():
    features, label = draw(30, 5)
    scaled, moved = np.array([1, 10, 100, 2, 3.0]), np.array([0, 5, -3, 1, 0.0])
    one = RidgeClassifier(features, label, 3, 2.0).scores(features)
    other = RidgeClassifier(features * scaled + moved, label, 3, 2.0)
    np.testing.assert_allclose(other.scores(features * scaled + moved), one, atol=1e-3)


def test_an_endless_penalty_leaves_the_frequencies_of_the_classes():
    features, label = draw(30, 5)
    label = np.where(label == 2, 0, label)
    scores = RidgeClassifier(features, label, 3, 1e12).scores(features)
    np.testing.assert_allclose(scores, np.tile([1 / 3, -1 / 3, -1.0], (30, 1)), atol=1e-6)


def test_a_constant_feature_counts_for_nothing():
    features, label = draw(30, 5)
    wider = np.concatenate([features, np.full((30, 1), 7.0)], axis=1)
    one, other = (RidgeClassifier(x, label, 3, 0.5).scores(x) for x in (features, wider))
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_one_image_a_class_is_named_right():
    features, label = draw(3, 10)
    scores = RidgeClassifier(features, label, 3, 1e-6).scores(features)
    np.testing.assert_array_equal(scores.argmax(1), label)
