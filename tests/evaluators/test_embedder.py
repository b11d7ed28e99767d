"""Features and logits go through the embedder as embeddings do: padded, gathered, in order."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from big_align.evaluators.embedder import Embedder
from tests import tiny


class Unscaled:
    """Has no scale, like an objective without cosines."""

    def scale(self, params):
        return None


class Verbs(Unscaled):
    """Stands for an objective: each verb is linear in the mean color."""

    traces = 0

    def image_features(self, params, model_state, batch):
        type(self).traces += 1
        return batch["image"].mean((1, 2)) @ params["features"]

    def classify(self, params, model_state, batch):
        return batch["image"].mean((1, 2)) @ params["classes"]

    def recognize(self, params, model_state, batch):
        return batch["image"].mean((1, 2)) @ params["tags"]


def batches_of(image, batch_size):
    for start in range(0, len(image), batch_size):
        rows = image[start : start + batch_size]
        padded = np.zeros((batch_size, *image.shape[1:]), image.dtype)
        padded[: len(rows)] = rows
        yield {"image": padded, "mask": np.arange(batch_size) < len(rows)}


@pytest.mark.parametrize("devices", [1, 8])
def test_every_image_gives_its_own_row(devices):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (21, 4, 4, 3)).astype(np.uint8)
    params = {"features": rng.normal(size=(3, 5)), "classes": rng.normal(size=(3, 2))}
    params["tags"] = rng.normal(size=(3, 7))
    embedder = Embedder(Verbs(), tiny.make_mesh(devices), 8).use(params, {})
    Verbs.traces = 0
    methods = {"features": "image_features", "classes": "classify_images", "tags": "recognize"}
    for verb, method in methods.items():
        rows, mask = getattr(embedder, method)(batches_of(image, 8), 21)
        expected = image.astype(np.float64).mean((1, 2)) @ params[verb]
        np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-3)
        assert mask.all() and rows.dtype == np.float32
    assert Verbs.traces == 1


class TextVerbs(Unscaled):
    """Stands for an objective: a text is the sum of its tokens' vectors."""

    def __init__(self):
        self.lengths = []

    def embed_text(self, params, model_state, batch):
        self.lengths.append(batch["text"].shape[1])
        return (params["tokens"][batch["text"]] * batch["text_mask"][..., None]).sum(1)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("devices", [8, 1])
@pytest.mark.parametrize(
    ("count", "length", "longest", "lengths"),
    [
        (67, 40, 40, {16, 32, 40}),  # nine batches of 8
        (67, 40, 9, {16}),
        (67, 77, 77, {24, 48, 72, 77}),
        (67, 8, 8, {8}),
        (64, 40, 0, {16}),
        (55, 40, 9, {40}),  # seven batches
        (3, 40, 40, {40}),
    ],
)
def test_texts_of_like_length_are_embedded_together(devices, count, length, longest, lengths):
    """In the order in which they are given, each as it would be alone; gaps are kept."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 9, (count, length)).astype(np.int32)
    real = rng.permutation(np.linspace(0, longest, count).round().astype(int))
    mask = np.arange(length) < real[:, None]
    mask[::3, 1:4] = False
    params = {"tokens": rng.normal(size=(9, 5)).astype(np.float32)}
    verbs = TextVerbs()
    embedder = Embedder(verbs, tiny.make_mesh(devices), 8).use(params, {})
    expected = (params["tokens"][text] * mask[..., None]).sum(1)
    np.testing.assert_allclose(embedder.embed_texts(text, mask), expected, atol=1e-4)
    assert set(verbs.lengths) == lengths and len(verbs.lengths) == len(lengths)


def test_a_part_of_many_texts_is_cut_to_its_length_too():
    """Captions come shard by shard: of few batches each, and of many in all."""
    rng = np.random.default_rng(0)
    text, mask = rng.integers(0, 9, (11, 40)).astype(np.int32), np.arange(40) < 9
    mask = np.tile(mask, (11, 1))
    params = {"tokens": rng.normal(size=(9, 5)).astype(np.float32)}
    verbs = TextVerbs()
    verbs.text_features = verbs.embed_text
    embedder = Embedder(verbs, tiny.make_mesh(), 8).use(params, {})
    found = [embedder.text_features(text, mask, **options) for options in ({}, {"many": 1})]
    np.testing.assert_allclose(*found, atol=1e-4)
    assert verbs.lengths == [40, 16]


def test_features_are_what_the_projection_and_the_length_make_embeddings_of():
    objective = tiny.make_objective(tiny.make_mesh())
    batch = tiny.make_batch(4)
    variables = jax.jit(objective.init)(jax.random.PRNGKey(0), batch)
    params, model_state = nn.meta.unbox(variables)
    embedder = Embedder(objective, tiny.make_mesh(), 4).use(params, model_state)
    one = {k: batch[k] for k in ("image", "mask")}
    features, _ = embedder.image_features([one], 4)
    zimg, _ = embedder.embed_images([one], 4)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    assert np.abs(length - 1).min() > 1e-2
    np.testing.assert_allclose(features / length, zimg, rtol=1e-5, atol=1e-6)


def test_embeddings_and_features_are_one_pass_over_the_tower():
    objective = tiny.make_objective(tiny.make_mesh())
    batch = tiny.make_batch(4)
    params, model_state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
    embedder = Embedder(objective, tiny.make_mesh(), 4).use(params, model_state)
    one = {k: batch[k] for k in ("image", "mask")}
    zimg, features, mask = embedder.embeddings_and_features([one], 4)
    np.testing.assert_allclose(zimg, embedder.embed_images([one], 4)[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(features, embedder.image_features([one], 4)[0], rtol=1e-6)
    assert mask.all()

    def count(*verbs):
        lowered = embedder.compile_verbs(verbs).lower(params, model_state, one)
        return lowered.compile().cost_analysis()["flops"]

    assert count("embed_image", "image_features") < 1.01 * count("embed_image")


@pytest.mark.parametrize(
    "method, remedy",
    [
        ("image_features", "what='embedding'"),
        ("classify_images", "zero_shot"),
        ("recognize", "the objective idea"),
    ],
)
def test_an_objective_without_the_verb_is_named(method, remedy):
    embedder = Embedder(Unscaled(), tiny.make_mesh(), 1).use({}, {})
    one = {"image": np.zeros((1, 2, 2, 3), np.uint8), "mask": np.ones(1, bool)}
    with pytest.raises(ValueError, match=f"the objective Unscaled has no .*{remedy}"):
        getattr(embedder, method)([one], 1)
