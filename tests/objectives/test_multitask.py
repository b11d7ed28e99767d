"""Multi-task: a classifier on labeled rows, CLIP on captioned rows, and nothing between them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.losses.classification import softmax_cross_entropy
from big_align.losses.contrastive import contrastive_loss
from big_align.objectives.multitask import MultiTask
from big_align.parallel.batches import place_batch
from big_align.training.step import full_gradients
from tests import tiny
from tests.device_counts import DEVICES

CLASSES = 4
LABEL = np.array([0, -1, 3, -1, -1, 2, 1, -1, 9, 0, -1, -1, 1, -1, -1, 3], np.int32)
MASK = np.arange(16) != 6
LABELED, CAPTIONED = (np.flatnonzero(MASK & x) for x in ((LABEL >= 0) & (LABEL < 4), LABEL < 0))


def make_objective(devices=1, **options):
    return MultiTask(tiny.make_model(group_size=2), tiny.make_mesh(devices), CLASSES, **options)


def draw(seed=0):
    """Outputs, and parameters of the loss."""
    rng = np.random.default_rng(seed)
    zimg, ztxt = rng.normal(size=(2, 16, 8))
    outputs = {"features": rng.normal(size=(16, 12)), "zimg": zimg, "ztxt": ztxt}
    for name in ("zimg", "ztxt"):
        outputs[name] /= np.linalg.norm(outputs[name], axis=1, keepdims=True)
    params = {
        "log_scale": np.log(5),
        "classifier": {"kernel": rng.normal(size=(12, CLASSES)), "bias": rng.normal(size=CLASSES)},
    }
    return jax.tree.map(jnp.float32, (params, outputs))


def make_batch(label=LABEL):
    text_mask = jnp.ones((16, 1), bool)
    return {"label": jnp.asarray(label), "mask": jnp.asarray(MASK), "text_mask": text_mask}


def expected_losses(params, outputs):
    """Both losses on slices: no row of the other kind is there."""
    head = params["classifier"]
    logits = outputs["features"][LABELED] @ head["kernel"] + head["bias"]
    label = jnp.asarray(LABEL[LABELED])
    classification = softmax_cross_entropy(logits, label, jnp.ones(len(label), bool))
    towers = outputs["zimg"][CAPTIONED], outputs["ztxt"][CAPTIONED]
    return classification, sum(contrastive_loss(*towers, jnp.exp(params["log_scale"]))) / 2


@pytest.mark.parametrize("devices", DEVICES)
def test_the_loss_is_the_mean_of_both_on_their_own_rows(devices):
    objective, (params, outputs) = make_objective(devices), draw()
    loss, metrics = jax.jit(objective.loss)(params, outputs, None, make_batch())
    classification, contrastive = jax.jit(expected_losses)(params, outputs)
    np.testing.assert_allclose(metrics["classification_loss"], classification, rtol=1e-5)
    np.testing.assert_allclose(metrics["contrastive_loss"], contrastive, rtol=1e-5)
    np.testing.assert_allclose(loss, (classification + contrastive) / 2, rtol=1e-5)
    assert metrics["labels_outside"] == 1

    gradient = jax.jit(jax.grad(lambda x: objective.loss(params, x, None, make_batch())[0]))
    grads = gradient(outputs)
    expected = jax.jit(jax.grad(lambda x: sum(expected_losses(params, x)) / 2))(outputs)
    for name in outputs:
        np.testing.assert_allclose(grads[name], expected[name], atol=1e-6)


@pytest.mark.parametrize("devices", DEVICES)
def test_in_one_direction_it_is_the_mean_of_eq_1_and_eq_2(devices):
    """Values and slopes by hand, in float64; texts get none from being asked for their images."""
    objective, (params, outputs) = make_objective(devices, direction="image_to_text"), draw()
    trained = jax.value_and_grad(lambda x: objective.loss(params, x, None, make_batch())[0])
    loss, grads = jax.jit(trained)(outputs)
    rows = {name: np.float64(x) for name, x in outputs.items()}
    head = jax.tree.map(np.float64, params["classifier"])

    def explain(logits, right):
        """Returns the mean surprise of the right columns, and its slopes by the logits."""
        share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        places = np.arange(len(logits)), right
        surprise = -np.log(share[places]).mean()
        share[places] -= 1
        return surprise, share / len(logits)

    eq_1, by_class = explain(
        rows["features"][LABELED] @ head["kernel"] + head["bias"], LABEL[LABELED]
    )
    zimg, ztxt = rows["zimg"][CAPTIONED], rows["ztxt"][CAPTIONED]
    eq_2, by_text = explain(5 * zimg @ ztxt.T, np.arange(len(zimg)))
    np.testing.assert_allclose(loss, (eq_1 + eq_2) / 2, rtol=1e-5)
    expected = {name: np.zeros_like(x) for name, x in rows.items()}
    expected["features"][LABELED] = by_class @ head["kernel"].T / 2
    expected["zimg"][CAPTIONED] = 5 * by_text @ ztxt / 2
    expected["ztxt"][CAPTIONED] = 5 * by_text.T @ zimg / 2
    for name in outputs:
        np.testing.assert_allclose(grads[name], expected[name], atol=1e-6)


@pytest.mark.parametrize("kind", ["captions", "labels", "neither"])
def test_a_batch_of_one_kind_has_the_loss_of_that_kind(kind):
    objective, (params, outputs) = make_objective(), draw()
    label = {"captions": -1, "labels": 2, "neither": CLASSES}[kind]
    batch = make_batch(np.full(16, label))
    gradient = jax.value_and_grad(lambda p: objective.loss(p, outputs, None, batch), has_aux=True)
    (loss, metrics), grads = jax.jit(gradient)(params)
    task = {"captions": "contrastive_loss", "labels": "classification_loss"}.get(kind)
    np.testing.assert_allclose(loss, metrics[task] if task else 0)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
    assert np.any(grads["classifier"]["kernel"]) == (kind == "labels")
    assert np.any(grads["log_scale"]) == (kind == "captions")


@pytest.mark.slow
def test_features_and_embeddings_come_from_one_pass():
    """The statistics move once, and the encoding is that of CLIP on the same parameters."""
    objective = make_objective()
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(4))
    params, model_state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
    rng = jax.random.PRNGKey(1)
    arguments = params, model_state, batch, rng
    outputs, state = jax.jit(objective.encode)(*arguments)
    expected, expected_state = jax.jit(super(MultiTask, objective).encode)(*arguments)
    for name in expected:
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, expected_state)
    lengths = np.linalg.norm(outputs["features"], axis=1, keepdims=True)
    np.testing.assert_allclose(outputs["features"] / lengths, outputs["zimg"], atol=1e-6)


def test_the_head_classifies_the_features_of_evaluation():
    objective = make_objective()
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(4))
    params, model_state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
    features = jax.jit(objective.image_features)(params, model_state, batch)
    head = params["classifier"]
    expected = features @ head["kernel"] + head["bias"]
    logits = jax.jit(objective.classify)(params, model_state, batch)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_eight_devices_equal_one():
    def run(devices):
        objective = make_objective(devices)
        batch = tiny.make_batch(16, masked=1, texts=(2,)) | {"label": LABEL}
        params, model_state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
        placed, rest = place_batch(batch, objective.mesh), jax.random.PRNGKey(1)
        gradients = jax.jit(
            lambda b: full_gradients(objective, params, model_state, b, rest, objective.mesh)
        )(placed)
        return jax.tree.map(np.asarray, (gradients[0], gradients[2]))

    (grads, loss), (grads_one, loss_one) = run(8), run(1)
    np.testing.assert_allclose(loss, loss_one, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_one), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1, np.abs(b).max()))
