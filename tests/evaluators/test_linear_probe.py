"""The probe reaches scikit-learn's optimum, and its search the best strength."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Reference

from big_align.evaluators import linear_probe, logistic_regression
from big_align.evaluators.features import shuffle_in_classes
from big_align.evaluators.linear_probe import LinearProbe, rate, search_strength
from big_align.evaluators.logistic_regression import LinearClassifier, LogisticRegression
from big_align.evaluators.scores import accuracy
from tests.evaluators.colours import ColourEmbedder, make_source


def make_features(count=300, dim=10, classes=5, seed=0):
    """Overlapping classes; the features' scales differ a hundredfold and they are far from 0."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, count)
    features = rng.normal(size=(classes, dim))[label] + rng.normal(size=(count, dim))
    return np.float32(features * np.geomspace(0.05, 5, dim) + 3), label


def loss_of(classifier, features, label, strength):
    logits = classifier.scores(np.float64(features))
    own = np.take_along_axis(logits, label[:, None], 1)
    loss = np.log(np.exp(logits - own).sum(axis=1)).sum()
    return loss + strength / 2 * np.sum(classifier.weight**2)


@pytest.mark.parametrize("strength", [1e-2, 1.0, 1e2, 1e5])
def test_the_optimum_is_that_of_scikit_learn(strength, monkeypatch):
    monkeypatch.setattr(logistic_regression, "BLOCK", 128)  # Three blocks, the last of them padded.
    features, label = make_features()
    ours = LogisticRegression(features, label, 5, tolerance=1e-5).fit(strength)
    theirs = Reference(C=1 / strength, tol=1e-10, max_iter=100000).fit(np.float64(features), label)
    reference = LinearClassifier(theirs.coef_.T, theirs.intercept_)
    best = loss_of(reference, features, label, strength)
    assert loss_of(ours, features, label, strength) == pytest.approx(best, rel=1e-6)
    size = np.abs(reference.weight).max()
    np.testing.assert_allclose(ours.weight, reference.weight, atol=1e-3 * size)
    expected = theirs.predict_log_proba(np.float64(features))
    found = ours.scores(np.float64(features))
    found -= np.log(np.exp(found).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_where_it_starts_and_the_order_of_examples_change_no_optimum():
    features, label = make_features()
    fit = LogisticRegression(features, label, 5, tolerance=1e-5).fit
    direct = fit(0.1)
    warm = fit(0.1, fit(100.0))
    np.testing.assert_allclose(warm.weight, direct.weight, atol=1e-3 * np.abs(direct.weight).max())
    order = np.random.default_rng(1).permutation(len(label))
    permuted = LogisticRegression(features[order], label[order], 5, tolerance=1e-5).fit(0.1)
    np.testing.assert_allclose(
        permuted.weight, direct.weight, atol=1e-3 * np.abs(direct.weight).max()
    )


def test_fewer_examples_than_features_and_weak_regularisation():
    """Separable data: the loss nears 0 and the optimum is still reached, in relation to it."""
    features, label = make_features(count=40, dim=64)
    strength = 1e-4
    ours = LogisticRegression(features, label, 5).fit(strength)
    theirs = Reference(C=1 / strength, tol=1e-12, max_iter=100000).fit(np.float64(features), label)
    best = loss_of(LinearClassifier(theirs.coef_.T, theirs.intercept_), features, label, strength)
    assert best < 0.05
    assert loss_of(ours, features, label, strength) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("peak", range(-48, 49, 7))
def test_the_search_finds_every_peak(peak):
    visited = []

    def fit(strength, start):
        visited.append(strength)
        return round(8 * np.log10(strength))

    strength, found = search_strength(fit, lambda index: -abs(index - peak))
    assert found == peak and strength == pytest.approx(10 ** (peak / 8))
    assert len(visited) == len(set(visited)) <= 15
    np.testing.assert_allclose(visited[:7], 10.0 ** np.arange(6, -7, -2))


def test_the_search_starts_at_neighbours_and_prefers_strong_regularisation():
    starts = {}

    def fit(strength, start):
        starts[round(8 * np.log10(strength))] = start
        return round(8 * np.log10(strength))

    strength, _ = search_strength(fit, lambda index: 0)
    assert strength == 1e6
    assert starts[48] is None and starts[32] == 48 and starts[-48] == -32


def test_the_search_finds_the_best_of_the_whole_grid():
    features, label = make_features(count=600, dim=30, seed=2)
    fit = LogisticRegression(features[:60], label[:60], 5).fit

    def measure(classifier):
        return rate(accuracy, classifier.scores(features[60:]), label[60:])[1]

    found, classifier = search_strength(fit, measure)
    grid = {index: measure(fit(10 ** (index / 8))) for index in range(-24, 33, 2)}
    best = max(grid, key=grid.get)
    assert abs(8 * np.log10(found) - best) <= 2
    assert measure(classifier) >= grid[best] - 1e-3


def test_separable_colours_are_all_named():
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 30, 200)
    table = rng.normal(size=(30, 40))
    sources = [make_source(c, 10 + c % 3) for c in (colours, colours[:90], colours[:50])]
    for score in ("accuracy", "mean_per_class", "mean_top1_top5"):
        probe = LinearProbe(sources[1], "resize(2)", sources[0], score=score)
        result = probe(ColourEmbedder(table))
        assert result[score] == result[f"validation_{score}"] == 1
        assert result == probe(ColourEmbedder(table, batch_size=4))
    probe = LinearProbe(sources[1], "resize(2)", sources[0], sources[2], what="embedding")
    assert probe(ColourEmbedder(table))["accuracy"] == 1


def test_the_final_fit_is_on_training_and_validation_set(monkeypatch):
    sizes = []

    class Recorded(LogisticRegression):
        def __init__(self, features, label, *rest, **options):
            sizes.append(np.bincount(label).tolist())
            super().__init__(features, label, *rest, **options)

    monkeypatch.setattr(linear_probe, "LogisticRegression", Recorded)
    colours = [0] * 10 + [1] * 5 + [2]
    source = make_source(colours, [4 + c for c in colours])
    LinearProbe(source, "resize(2)", source)(ColourEmbedder(np.eye(3)))
    assert sizes == [[8, 4, 1], [10, 5, 1]]  # A fifth of each class, rounded down.


def test_places_in_classes_are_permutations_that_differ_by_draw():
    label = np.array([3, 1, 3, 3, 1, 0] * 7)
    place, size = shuffle_in_classes(label, seed=0)
    for c in (0, 1, 3):
        assert sorted(place[label == c]) == list(range((label == c).sum()))
        assert set(size[label == c]) == {(label == c).sum()}
    np.testing.assert_array_equal(place, shuffle_in_classes(label, seed=0)[0])
    for other in ({"seed": 1}, {"seed": 0, "draw": 1}):
        assert (place != shuffle_in_classes(label, **other)[0]).any()


def test_bad_input_is_named():
    good, embedder = make_source([0, 1] * 5, [0, 1] * 5), ColourEmbedder(np.eye(3))
    with pytest.raises(ValueError, match="source: 1 classes, 2 among them, have no example in"):
        LinearProbe(make_source([2], [2]), "resize(2)", good)(embedder)
    with pytest.raises(ValueError, match="validation_source: 2 classes, 2 among them"):
        LinearProbe(good, "resize(2)", good, make_source([0, 1], [2, 3]))(embedder)
    with pytest.raises(ValueError, match="train_source: 1 of 2 examples, colours: 0 the first"):
        LinearProbe(good, "resize(2)", make_source([0, 1], [-1, 1]))(embedder)
    with pytest.raises(ValueError, match="no class has enough examples to take a share of 0.2"):
        LinearProbe(*(make_source([0, 1], [0, 1]) if i != 1 else "resize(2)" for i in range(3)))(
            embedder
        )
    with pytest.raises(ValueError, match="score = 'map_11_point' is unknown; known: accuracy"):
        LinearProbe(good, "resize(2)", good, score="map_11_point")
    with pytest.raises(ValueError, match="validation_share = 1.0"):
        LinearProbe(good, "resize(2)", good, validation_share=1.0)
