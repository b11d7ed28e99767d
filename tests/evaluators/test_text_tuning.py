"""A text encoder that is tuned on images names them; the model that is measured stays as it is."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from big_align.data.sources.array_source import ArraySource
from big_align.data.text.tokenizers import WordTokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.features import LabeledFeatures
from big_align.evaluators.text_tuning import ClassEmbeddings, FewShotText, TextTuning, tune
from big_align.evaluators.zero_shot import embed_classes
from tests import tiny
from tests.device_counts import DEVICES

TOKENIZER = WordTokenizer(("a", "b", "c", "d", "red", "green", "blue"), tiny.LENGTH)
TEXTS = [["a red"], ["a green", "b green", "c"], ["blue"], ["d d"], ["d a"]]
QUICK = TextTuning(temperature=0.1, steps=12, rates=(1e-2,), looks=3)


@functools.cache
def make_weights():
    objective = tiny.make_objective(tiny.make_mesh())
    return nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), tiny.make_batch(2)))


def make_embedder(devices=1):
    mesh = tiny.make_mesh(devices)
    return Embedder(tiny.make_objective(mesh), mesh, 8).use(*make_weights())


def draw_images(count, seed):
    """Embeddings around five directions, which texts know nothing of."""
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(7).normal(size=(5, 16))
    label = np.arange(count) % 5
    x = directions[label] + 0.5 * rng.normal(size=(count, 16))
    return LabeledFeatures(np.float32(x / np.linalg.norm(x, axis=1, keepdims=True)), label)


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_it_begins_where_zero_shot_is(devices):
    """Classes of several texts, and padding to the number of devices."""
    embedder = make_embedder(devices)
    classes = ClassEmbeddings(embedder, TOKENIZER, TEXTS)
    expected = embed_classes(embedder, TOKENIZER, TEXTS)
    np.testing.assert_allclose(classes(classes.start), expected, atol=1e-6)


@pytest.mark.slow
def test_tuned_texts_name_other_images_and_the_model_stays():
    results = []
    for devices in (1, 8):
        embedder = make_embedder(devices)
        before = embed_classes(embedder, TOKENIZER, TEXTS)
        classes = ClassEmbeddings(embedder, TOKENIZER, TEXTS)
        ztxt = tune(classes, draw_images(40, 0), draw_images(20, 1), QUICK)
        test = draw_images(100, 2)
        named = [((test.features @ z.T).argmax(1) == test.label).mean() for z in (before, ztxt)]
        assert named[0] < 0.6 and named[1] > 0.85
        np.testing.assert_allclose(np.linalg.norm(ztxt, axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(embed_classes(embedder, TOKENIZER, TEXTS), before)
        results.append(ztxt)
    np.testing.assert_allclose(*results, atol=2e-3)


@pytest.mark.slow
def test_what_does_not_help_on_held_out_images_is_not_taken():
    """Held-out images that the start names, and that what is fitted contradicts."""
    embedder = make_embedder()
    classes = ClassEmbeddings(embedder, TOKENIZER, TEXTS)
    start = classes(classes.start)
    held_out = LabeledFeatures(start, np.arange(5))
    fitted = LabeledFeatures(start, np.roll(np.arange(5), 1))
    tuning = TextTuning(temperature=0.1, steps=2, rates=(1e-2,), looks=1)
    np.testing.assert_array_equal(tune(classes, fitted, held_out, tuning), start)


@pytest.mark.slow
def test_the_evaluator_measures_every_number_of_shots():
    label, names = np.arange(60) % 3, ("red", "green", "blue")
    patterns = np.random.default_rng(5).integers(0, 200, (3, 8, 8, 3))

    def make_source(seed, named):
        noise = np.random.default_rng(seed).integers(0, 56, (60, 8, 8, 3))
        image = np.uint8(patterns[label] + noise)
        return ArraySource(image, [["-"]] * 60, named, "patterns", None)

    wrong = np.where(np.arange(60) < 12, (label + 1) % 3, label)  # a fifth of the test set
    evaluate = FewShotText(
        make_source(0, wrong), "resize(8)", TOKENIZER, make_source(1, label), names, ("{}",),
        shots=(1, 4), draws=2, tuning=QUICK,
    )  # fmt: skip
    found = evaluate(make_embedder())
    assert set(found) == set(evaluate.numbers)
    assert found["text_encoder_0shot"] < 0.6 < found["text_encoder_4shot"] <= 0.8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature = 0.0"),
        ({"rates": ()}, "must be above 0"),
        ({"steps": 2, "looks": 3}, "looks = 3 between 1 and it"),
    ],
)
def test_values_out_of_range_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        TextTuning(**wrong)


@pytest.mark.parametrize("steps, looks", [(10, 4), (11, 6), (7, 4), (12, 3), (5, 5)])
def test_it_looks_as_often_as_is_said_and_at_the_last_step(steps, looks):
    calls = []

    class Classes(ClassEmbeddings):
        start = {"step": 0}

        def __init__(self):
            pass

        def begin(self, tuned):
            return None

        def step(self, tuned, moments, *given):
            return {"step": tuned["step"] + 1}, None

        def __call__(self, tuned):
            calls.append(tuned["step"])
            return np.eye(2, dtype=np.float32)

    part = LabeledFeatures(np.eye(2, dtype=np.float32), np.arange(2))
    tune(Classes(), part, part, TextTuning(steps=steps, rates=(1e-2,), looks=looks))
    assert len(calls) == 1 + looks and calls[0] == 0 and calls[-1] == steps
