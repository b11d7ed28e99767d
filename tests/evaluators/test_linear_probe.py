"""The probe reaches scikit-learn's optimum, and its search the best strength."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.multiclass import OneVsRestClassifier

from big_align.core.errors import UserError
from big_align.evaluators import linear_probe
from big_align.evaluators.classifiers import logistic_regression
from big_align.evaluators.classifiers.logistic_regression import (
    LinearClassifier,
    LogisticRegression,
)
from big_align.evaluators.features import (
    LabeledFeatures,
    mark_classes,
    rarest_classes,
    shuffle_in_classes,
)
from big_align.evaluators.linear_probe import (
    LinearProbe,
    ProbeSettings,
    fit_probe,
    rate,
    search_strength,
)
from big_align.evaluators.scores import accuracy, map_11_point
from tests.evaluators.colors import ColorEmbedder, make_source


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


@pytest.mark.parametrize(
    "strength", [*(pytest.param(x, marks=pytest.mark.slow) for x in (1e-2, 1.0)), 1e2, 1e5]
)
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


def make_several(count=300, classes=5, seed=0):
    """Features of `make_features`, and for each class whether an example has it; some have none."""
    features, label = make_features(count, classes=classes, seed=seed)
    more = np.random.default_rng(seed).random((count, classes))
    present = (0.7 * np.eye(classes)[label] > more) | (more > 0.9)
    assert not present.any(axis=1).all() and (present.sum(axis=1) > 1).any()
    return features, present


@pytest.mark.parametrize(
    "strength", [*(pytest.param(x, marks=pytest.mark.slow) for x in (1e-2, 1.0)), 1e2, 1e5]
)
def test_one_against_the_rest_has_the_optimum_of_scikit_learn(strength, monkeypatch):
    monkeypatch.setattr(logistic_regression, "BLOCK", 128)  # Three blocks, the last of them padded.
    features, present = make_several()
    ours = LogisticRegression(features, present, 5, tolerance=1e-6).fit(strength)
    theirs = OneVsRestClassifier(Reference(C=1 / strength, tol=1e-10, max_iter=100000))
    theirs.fit(np.float64(features), present)
    weight = np.stack([one.coef_[0] for one in theirs.estimators_], axis=1)
    np.testing.assert_allclose(ours.weight, weight, atol=2e-3 * np.abs(weight).max())
    found = 1 / (1 + np.exp(-ours.scores(np.float64(features))))
    np.testing.assert_allclose(found, theirs.predict_proba(np.float64(features)), atol=1e-3)


def test_binary_cross_entropy_by_hand():
    logits = jnp.array([[0.0, 2.0], [-40.0, 50.0], [3.0, 3.0]])
    present = jnp.array([[1, 0], [1, 0], [-1, -1]])
    loss, gradient = logistic_regression.binary_cross_entropy(logits, present)
    np.testing.assert_allclose(loss, [np.log(2) + np.log1p(np.exp(2)), 90, 0], rtol=1e-6)
    expected = [[-1 / 2, 1 / (1 + np.exp(-2))], [-1, 1], [0, 0]]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    # Small losses keep their digits: ln(1 + e^-30) is 0 in float32 when 1 is added first.
    pair = jnp.array([[30.0]]), jnp.ones((1, 1), int)
    loss, gradient = logistic_regression.binary_cross_entropy(*pair)
    np.testing.assert_allclose((loss[0], -gradient[0, 0]), np.exp(-30), rtol=1e-5)


def test_classes_beside_each_other_do_not_change_the_fit_of_one():
    features, present = make_several()
    together = LogisticRegression(features, present, 5, tolerance=1e-6).fit(1.0)
    alone = LogisticRegression(features, present[:, 2:3], 1, tolerance=1e-6).fit(1.0)
    size = np.abs(alone.weight).max()
    np.testing.assert_allclose(together.weight[:, 2:3], alone.weight, atol=2e-3 * size)


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


@pytest.mark.slow
def test_fewer_examples_than_features_and_weak_regularization():
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


def test_the_search_starts_at_neighbors_and_prefers_strong_regularization():
    starts = {}

    def fit(strength, start):
        starts[round(8 * np.log10(strength))] = start
        return round(8 * np.log10(strength))

    strength, _ = search_strength(fit, lambda index: 0)
    assert strength == 1e6
    assert starts[48] is None and starts[32] == 48 and starts[-48] == -32


@pytest.mark.slow
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


@pytest.mark.slow
def test_separable_colors_are_all_named():
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 30, 200)
    table = rng.normal(size=(30, 40))
    sources = [make_source(c, 10 + c % 3) for c in (colors, colors[:90], colors[:50])]
    for score in ("accuracy", "mean_per_class", "mean_top1_top5"):
        probe = LinearProbe(sources[1], "resize(2)", sources[0], score=score)
        result = probe(ColorEmbedder(table))
        assert result[score] == result[f"validation_{score}"] == 1
        assert result == probe(ColorEmbedder(table, batch_size=4))
    probe = LinearProbe(sources[1], "resize(2)", sources[0], sources[2], what="embedding")
    assert probe(ColorEmbedder(table))["accuracy"] == 1


def test_the_final_fit_is_on_training_and_validation_set(monkeypatch):
    sizes = []

    class Recorded(LogisticRegression):
        def __init__(self, features, label, *rest, **options):
            sizes.append(np.bincount(label).tolist())
            super().__init__(features, label, *rest, **options)

    monkeypatch.setattr(linear_probe, "LogisticRegression", Recorded)
    colors = [0] * 10 + [1] * 5 + [2]
    source = make_source(colors, [4 + c for c in colors])
    LinearProbe(source, "resize(2)", source)(ColorEmbedder(np.eye(3)))
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


def test_ties_of_map_are_told_apart_by_cross_entropy():
    present = np.array([[True, False], [False, True], [False, False]])
    scores = np.float32([[1, -1], [-1, 1], [-2, -2]])
    for factor in (1, 2):
        score, likelihood = rate(map_11_point, factor * scores, present)
        expected = -4 * np.log1p(np.exp(-factor)) - 2 * np.log1p(np.exp(-2 * factor))
        assert score == 1 and likelihood == pytest.approx(expected / 3)


def test_mean_average_precision_of_several_labels_by_hand():
    """Class 7 is red, class 2 red or green, class 5 gray; blue is of no class."""
    labels = [[7, 2], [2, -1], [-1, -1], [5, -1]]
    colors = list(range(4)) * 10
    train = make_source(colors, [labels[c] for c in colors])
    embedder = ColorEmbedder(3 * np.eye(4))
    for validation in (None, train):
        probe = LinearProbe(train, "resize(2)", train, validation, score="map_11_point")
        result = probe(embedder)
        assert result["map_11_point"] == result["validation_map_11_point"] == 1
    # A second gray is of no class: it ranks level with the first, at a precision of 1/2.
    test = make_source([0, 1, 2, 3, 3], [*labels, [-1, -1]])
    result = LinearProbe(test, "resize(2)", train, score="map_11_point")(embedder)
    assert result["map_11_point"] == pytest.approx((1 + 1 + 1 / 2) / 3)


def test_images_without_a_label_are_negative_for_all_classes():
    """Half of the reds have no label: the probability of red falls to one half."""
    table = np.eye(3) * 3
    colors = [0, 1, 2] * 40
    some = [[c] if c < 2 else [-1] for c in colors]
    half = [[c] if c == 1 or (c == 0 and n % 2) else [-1] for n, c in enumerate(colors)]
    for labels, expected in ((some, 1), (half, 1 / 2)):
        present = mark_classes([tuple(c for c in row if c >= 0) for row in labels])
        classifier = LogisticRegression(np.float32(table[colors]), present, 2).fit(1e-4)
        probability = 1 / (1 + np.exp(-classifier.scores(np.float32(table))))
        np.testing.assert_allclose(probability[0], [expected, 0], atol=0.02)
        assert probability[2].max() < 0.02
    source = make_source(colors, half)
    result = LinearProbe(source, "resize(2)", source, score="map_11_point")(ColorEmbedder(table))
    assert result["map_11_point"] == pytest.approx((1 / 2 + 1) / 2)


def test_one_label_each_is_split_and_ranked_as_a_case_of_several():
    label = np.array([3, 1, 3, 3, 1, 0] * 7)
    present = mark_classes([(c,) for c in label.tolist()])
    np.testing.assert_array_equal(rarest_classes(present), label)
    several = mark_classes([(0, 1), (0,), (), (1, 2), (0, 2)])
    assert rarest_classes(several).tolist() == [1, 0, -1, 1, 2]
    # Rows that are filled up, and labels with gaps, change nothing.
    colors = np.random.default_rng(0).integers(0, 30, 120)
    table = np.random.default_rng(1).normal(size=(30, 6))
    plain, filled = (
        make_source(colors, x) for x in (colors % 3, [[4 + 2 * c, -1] for c in colors % 3])
    )
    found = [
        LinearProbe(source, "resize(2)", source, score="map_11_point")(ColorEmbedder(table))
        for source in (plain, filled)
    ]
    assert found[0] == found[1] and found[0]["map_11_point"] > 1 / 3


def test_labels_that_cannot_be_ranked_are_named():
    embedder = ColorEmbedder(np.eye(3))
    good = make_source([0, 1] * 5, [[0, 1], [1, -1]] * 5)

    def probe(*sources, **options):
        test, *others = sources
        return LinearProbe(test, "resize(2)", *others, score="map_11_point", **options)(embedder)

    with pytest.raises(ValueError, match="train_source: 1 classes, 0 among them, have no example"):
        probe(make_source([0, 1], [[1], [1]]), good)
    with pytest.raises(ValueError, match="probe.source: 1 classes, 2 among them, have no example"):
        probe(make_source([0, 1], [[0, 1], [2, -1]]), good)
    with pytest.raises(ValueError, match="class 2 has examples on one side only of a split"):
        lone = make_source([0, 1] * 5 + [2], [[0, 1], [1, -1]] * 5 + [[2, -1]])
        probe(lone, lone)
    with pytest.raises(ValueError, match="probe.train_source: no example has a label"):
        probe(good, make_source([0, 1], None))
    with pytest.raises(ValueError, match="colors: 0: it has the labels 0, 1, where one is wanted"):
        LinearProbe(good, "resize(2)", good)(embedder)


def test_sources_are_joined_by_the_names_of_classes():
    def source(*names):
        return make_source([0, 1] * 5, [0, 1] * 5, class_names=names)

    cats, swapped = source("cat", "dog"), source("dog", "cat")
    LinearProbe(cats, "resize(2)", cats, make_source([0], [0]))
    probe = LinearProbe(
        swapped, "resize(2)", cats, make_source([0, 0], [0, 0], class_names=("dog",))
    )
    assert [probe.source.read_text(0, n)[1] for n in (0, 1)] == [(1,), (0,)]
    assert probe.validation_source.read_text(0, 0)[1] == (1,)
    with pytest.raises(UserError, match="'cow', which is no class of linear_probe.train_source"):
        LinearProbe(cats, "resize(2)", cats, source("cat", "cow"))


def test_bad_input_is_named():
    good, embedder = make_source([0, 1] * 5, [0, 1] * 5), ColorEmbedder(np.eye(3))
    with pytest.raises(ValueError, match="source: 1 classes, 2 among them, have no example in"):
        LinearProbe(make_source([2], [2]), "resize(2)", good)(embedder)
    with pytest.raises(ValueError, match="validation_source: 2 classes, 2 among them"):
        LinearProbe(good, "resize(2)", good, make_source([0, 1], [2, 3]))(embedder)
    with pytest.raises(ValueError, match="train_source: 1 of 2 examples, colors: 0 the first"):
        LinearProbe(good, "resize(2)", make_source([0, 1], [-1, 1]))(embedder)
    with pytest.raises(ValueError, match="no class has enough examples to take a fraction of 0.2"):
        LinearProbe(*(make_source([0, 1], [0, 1]) if i != 1 else "resize(2)" for i in range(3)))(
            embedder
        )
    with pytest.raises(ValueError, match="score = 'map' is unknown; known: accuracy"):
        LinearProbe(good, "resize(2)", good, score="map")
    with pytest.raises(ValueError, match="validation_fraction = 1.0"):
        LinearProbe(good, "resize(2)", good, validation_fraction=1.0)


@pytest.mark.slow
def test_test_images_of_classes_without_training_images_are_wrong():
    features, label = make_features(400, classes=6)
    parts = np.split(np.random.default_rng(0).permutation(400), [150, 200])
    train, validation, test = (LabeledFeatures(features[part], label[part]) for part in parts)
    seen = LabeledFeatures(*(x[train.label < 4] for x in train))  # 4 is in validation alone
    chosen = LabeledFeatures(*(x[validation.label < 5] for x in validation))
    strict = ProbeSettings("accuracy")
    with pytest.raises(UserError, match="have no example in linear_probe.train_source"):
        fit_probe(seen, test, chosen, strict)
    probe = fit_probe(seen, test, chosen, ProbeSettings("accuracy", few_examples=True))
    assert probe.classes.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.isneginf(probe.scores[:, 5]).all() and np.isfinite(probe.scores[:, :5]).all()
    right = probe.scores.argmax(axis=1) == test.label
    assert probe.numbers["accuracy"] == right.mean() and not right[test.label == 5].any()
    assert right[test.label < 5].mean() > 0.5
    # The others are told as if there were no such class.
    rest = LabeledFeatures(*(x[test.label < 5] for x in test))
    known = LabeledFeatures(*(x[chosen.label < 4] for x in chosen))
    alone = fit_probe(seen, rest, chosen, ProbeSettings("accuracy", few_examples=True))
    np.testing.assert_array_equal(alone.scores, probe.scores[test.label < 5][:, :5])
    same = fit_probe(seen, LabeledFeatures(*(x[test.label < 4] for x in test)), known, strict)
    assert alone.numbers["strength"] == same.numbers["strength"]
    nothing = LabeledFeatures(*(x[chosen.label == 4] for x in chosen))
    with pytest.raises(UserError, match="no class has both training and validation images"):
        fit_probe(seen, test, nothing, ProbeSettings("accuracy", few_examples=True))


@pytest.mark.parametrize("narrow", ["source", "validation_source"])
def test_a_set_may_lack_the_last_class_of_several_labels(narrow):
    """Its labels are those of all classes with nothing in the last column."""
    generator = np.random.default_rng(0)
    names = ("source", "validation_source", "train_source")
    parts = {}
    for name in names:
        classes = 2 if name == narrow else 3
        label = generator.integers(0, classes, 60)
        features = np.float32(np.eye(3)[label] + 0.1 * generator.normal(size=(60, 3)))
        parts[name] = LabeledFeatures(features, mark_classes([(c,) for c in label.tolist()]))
    assert parts[narrow].label.shape[1] == 2
    settings = ProbeSettings(score="real_accuracy")
    found = [
        fit_probe(parts["train_source"], parts["source"], parts["validation_source"], settings)
    ]
    wide = {
        name: part._replace(label=np.pad(part.label, [(0, 0), (0, 3 - part.label.shape[1])]))
        for name, part in parts.items()
    }
    found += [fit_probe(wide["train_source"], wide["source"], wide["validation_source"], settings)]
    assert found[0].numbers == found[1].numbers and found[0].numbers["real_accuracy"] > 0.5
