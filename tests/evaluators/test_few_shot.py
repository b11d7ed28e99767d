"""Draws are balanced and nested; the text classifier begins at zero-shot and fits what it sees."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.evaluators.classifiers.cosine_regression import CosineClassifier, CosineRegression
from big_align.evaluators.features import LabeledFeatures
from big_align.evaluators.few_shot import FewShot, draw_shots, measure_linear, measure_ridge
from big_align.evaluators.text_tuning import FewShotText
from big_align.evaluators.zero_shot import ZeroShot, measure_accuracy
from tests.evaluators.colors import ColorEmbedder, make_source, tokenize


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_draws_are_balanced_nested_and_apart_from_what_is_held_out():
    label = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [20, 21, 25, 30, 40, 22]))
    for draw in range(3):
        before = np.zeros(len(label), bool)
        for shots in (1, 2, 4, 8, 16):
            fitted, held_out = draw_shots(label, shots, draw)
            assert np.bincount(label[fitted]).tolist() == [shots] * 6
            assert np.bincount(label[held_out]).tolist() == [min(shots, 4)] * 6
            assert not (fitted & held_out).any() and not (before & ~fitted).any()
            np.testing.assert_array_equal(fitted, draw_shots(label, shots, draw)[0])
            before = fitted
    assert (draw_shots(label, 4, 0)[0] != draw_shots(label, 4, 1)[0]).any()
    with pytest.raises(ValueError, match="class 0 has 20 images; 17 shots need 21, 4 of them"):
        draw_shots(label, 17, 0)


@pytest.mark.parametrize("wins", ["long", "short"])
def test_images_that_are_held_out_choose_the_strength_and_the_test_set_is_scored(wins):
    """A long feature is wrong for one image of four that are fitted, and a short one for none.

    Strong regularization follows the long one, and weak regularization the short one. What is held
    out, and the test set, contradict one of them.
    """
    label = np.tile([0, 1], 8)
    fitted, held_out = draw_shots(label, 4, 0)
    sign = np.float32(1 - 2 * label)
    features = np.stack([3 * sign, 0.3 * sign], axis=1)
    for c in (0, 1):
        features[np.flatnonzero(fitted & (label == c))[0], 0] *= -1
    features[held_out, 1 if wins == "long" else 0] *= -1
    sets = [LabeledFeatures(features[part], label[part]) for part in (slice(None), held_out)]
    assert measure_linear(tuple(sets), (4,), draws=1)["linear_4shot"] == 1


def test_ridge_is_scored_on_the_test_set():
    features, label = np.float32(np.repeat(np.eye(3), 4, 0)), np.repeat(np.arange(3), 4)
    noise = np.random.default_rng(0).normal(size=features.shape)
    train = LabeledFeatures(features + np.float32(0.01 * noise), label)
    test = LabeledFeatures(features[:4], np.array([0, 0, 0, 1]))  # one is mislabeled
    assert measure_ridge((train, test), (2,), draws=1)["ridge_2shot"] == 0.75


def make_regression(seed=0, temperature=0.1):
    rng = np.random.default_rng(seed)
    zimg, texts = (unit(rng.normal(size=(n, 30)).astype(np.float32)) for n in (20, 4))
    label = rng.integers(0, 4, 20)
    return zimg, texts, label, CosineRegression(zimg, label, texts, temperature, tolerance=1e-4)


def test_strong_regularization_keeps_the_texts_and_weak_one_fits_the_images():
    zimg, texts, label, regression = make_regression()
    kept = regression.fit(1e6)
    np.testing.assert_allclose(kept.vectors, texts, atol=1e-5)
    fitted = regression.fit(1e-4, kept)
    before = measure_accuracy(CosineClassifier(texts, 0.1).scores(zimg), label)["top1"]
    assert before < 0.6 and measure_accuracy(fitted.scores(zimg), label)["top1"] == 1
    # Cosines: the length of a vector does not matter.
    longer = fitted._replace(vectors=fitted.vectors * np.array([[1], [2], [3], [4]]))
    np.testing.assert_allclose(longer.scores(zimg), fitted.scores(zimg), rtol=1e-5)


def test_nothing_nearby_is_better_than_the_fit():
    zimg, texts, label, regression = make_regression()
    strength, fitted = 0.1, regression.fit(0.1)

    def loss(vectors):
        logits = CosineClassifier(vectors, 0.1).scores(np.float64(zimg))
        own = np.take_along_axis(logits, label[:, None], 1)
        penalty = strength / 2 * np.sum(((vectors - texts) / 0.1) ** 2)
        return np.log(np.exp(logits - own).sum(axis=1)).sum() + penalty

    rng = np.random.default_rng(1)
    best = loss(fitted.vectors)
    assert best < loss(np.float64(texts))
    for size in (1e-2, 1e-3):
        moves = (size * rng.normal(size=texts.shape) for _ in range(20))
        assert all(loss(fitted.vectors + move) > best for move in moves)


@pytest.mark.slow
def test_images_beside_their_texts_are_named_with_any_number_of_shots():
    """Eight colors a class, near the color of the class's text; labels 1, 3 and 5 of six."""
    rng = np.random.default_rng(0)
    centers = 3 * np.eye(6, 16)
    table = np.vstack([centers, np.repeat(centers, 8, 0) + 0.2 * rng.normal(size=(48, 16))])
    label = np.repeat([1, 3, 5], 8)
    source = make_source(6 + 8 * label + np.tile(np.arange(8), 3), label)
    names = tuple(str(c) for c in range(6))
    evaluate = FewShot(
        source, "resize(2)", tokenize, source, names, ("a photo of {}",), shots=(1, 4), draws=2
    )
    result = evaluate(ColorEmbedder(table))
    assert result["text_0shot"] == 1
    for name in ("linear_1shot", "linear_4shot", "text_1shot", "text_4shot"):
        assert result[name] == 1 and result[f"{name}_std"] == 0
    # Standardized by three images, the ten features that hold noise alone weigh as much as others.
    assert 1 / 3 < result["ridge_1shot"] < 0.9 < result["ridge_4shot"]
    assert set(
        FewShot(source, "resize(2)", tokenize, source, shots=(2,))(ColorEmbedder(table))
    ) == {"linear_2shot", "linear_2shot_std", "ridge_2shot", "ridge_2shot_std"}


@pytest.mark.slow
def test_mean_and_spread_are_over_draws_that_differ():
    rng = np.random.default_rng(3)
    label = np.repeat(np.arange(4), 30)
    table = np.eye(4, 5)[label] + 0.6 * rng.normal(size=(120, 5))
    source = make_source(np.arange(120), label)

    def run(draws):
        evaluate = FewShot(source, "resize(2)", tokenize, source, shots=(1, 16), draws=draws)
        return evaluate(ColorEmbedder(table))

    one, three = run(1), run(3)
    assert one["linear_1shot_std"] == 0 < three["linear_1shot_std"] < 0.3
    assert three["linear_16shot"] > three["linear_1shot"] > 0.25
    assert three == run(3)


def test_sources_are_joined_by_the_names_of_their_classes():
    def source(*names):
        return make_source([0, 1], [0, 1], class_names=names)

    def labels(evaluator):
        sources = evaluator.source, evaluator.train_source
        return [[each.read_text(0, n)[1] for n in (0, 1)] for each in sources]

    right, swapped, other = source("cat", "dog"), source("dog", "cat"), source("cat", "cow")
    given = "resize(2)", tokenize
    assert labels(FewShot(swapped, *given, right)) == [[(1,), (0,)], [(0,), (1,)]]
    for evaluator in (FewShot, FewShotText):
        joined = evaluator(right, *given, swapped, ("Cat", "dog", "cow"))
        assert labels(joined) == [[(0,), (1,)], [(1,), (0,)]]
        with pytest.raises(UserError, match="few_shot.*.train_source: label 1 is 'cow', which is"):
            evaluator(right, *given, other, ("cat", "dog"))
    with pytest.raises(UserError, match="'cow', which is no class of few_shot.train_source"):
        FewShot(other, *given, right)


@pytest.mark.parametrize("evaluator", [FewShot, FewShotText, ZeroShot])
def test_names_may_be_those_of_the_source(evaluator):
    def make(source):
        train = {} if evaluator is ZeroShot else {"train_source": source}
        return evaluator(
            source, "resize(2)", tokenize, **train, names="source", templates=("a {}.",)
        )

    named = make_source([0, 1], [0, 1], class_names=("hot_dog", "cat"))
    assert [list(texts) for texts in make(named).texts] == [["a hot dog."], ["a cat."]]
    with pytest.raises(UserError, match="the source has no names of its own: name a list"):
        make(make_source([0, 1], [0, 1]))


def test_bad_input_is_named():
    embedder = ColorEmbedder(np.eye(3))
    source = make_source([0, 1, 2] * 5, [0, 1, 7] * 5)
    with pytest.raises(ValueError, match="1 labels, 7 among them, are not in the 2 class names"):
        FewShot(source, "resize(2)", tokenize, source, ("0", "1"), shots=(1,))(embedder)
    with pytest.raises(ValueError, match="class 0 has 5 images; 4 shots need 8"):
        FewShot(source, "resize(2)", tokenize, source, shots=(4,))(embedder)
    for options in ({"shots": ()}, {"shots": (0,)}, {"draws": 0}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FewShot(source, "resize(2)", tokenize, source, **options)
