"""UniCL: positives come from labels; between CLIP, all labels distinct, and cross-entropy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.losses.blockwise_contrastive import blockwise_contrastive_loss
from big_align.losses.contrastive import contrastive_loss
from big_align.objectives.clip import Clip
from big_align.objectives.parts.contrast import DIRECTIONS, distinguish_pairs
from big_align.objectives.unicl import Unicl
from big_align.parallel.batches import place_batch
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny
from tests.device_counts import DEVICES
from tests.losses.float64_contrast import contrast_by_hand


def make_objective(devices=1, kind=Unicl, **options):
    return kind(tiny.make_model(group_size=2), tiny.make_mesh(devices), **options)


def draw_outputs(size=16, dim=8, texts=()):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(size, dim)), rng.normal(size=(size, *texts, dim))
    zimg, ztxt = (jnp.float32(x / np.linalg.norm(x, axis=-1, keepdims=True)) for x in z)
    return {"zimg": zimg, "ztxt": ztxt}


def draw_batch(size=16, classes=4, masked=0, texts=()):
    """Half of the rows are pairs."""
    rng = np.random.default_rng(1)
    label = np.where(rng.random(size) < 0.5, -1, rng.integers(0, classes, size))
    real = rng.random((size, *texts, 1)) < 0.7
    real[:, :1] = True
    return {
        "label": jnp.asarray(label, jnp.int32),
        "mask": jnp.arange(size) < size - masked,
        "text_mask": jnp.asarray(real),
    }


def differentiate(objective, outputs, batch, scale=5.0):
    def loss(params, outputs):
        return objective.loss(params, outputs, None, batch)[0]

    params = {"log_scale": jnp.log(jnp.float32(scale))}
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, outputs)


def assert_close(actual, desired, tolerance=1e-5):
    """Compares pytrees, each array relative to its largest element."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * np.abs(d).max() + 1e-9)


@pytest.mark.parametrize("devices", DEVICES)
def test_golden(reference_dir, devices):
    golden = np.load(reference_dir / "losses.npz")
    outputs = {
        "zimg": jnp.float32(golden["align_image"]),
        "ztxt": jnp.float32(golden["align_text"]),
    }
    # There 0 marks a pair and classes count from 1.
    label = jnp.asarray(golden["unicl_label"] - 1)
    batch = draw_batch(24) | {"label": label}
    params = {"log_scale": jnp.log(jnp.float32(golden["unicl_scale"]))}
    loss, metrics = jax.jit(make_objective(devices).loss)(params, outputs, None, batch)
    np.testing.assert_allclose(loss, golden["unicl_loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["image_to_text_loss"], golden["unicl_i2t"], rtol=1e-5)
    np.testing.assert_allclose(metrics["text_to_image_loss"], golden["unicl_t2i"], rtol=1e-5)


def test_a_pair_has_a_label_that_no_other_row_has():
    label = jnp.array([3, -1, 0, -1, 3, -1, -7])
    distinct = distinguish_pairs(label)
    equal = np.asarray(distinct[:, None] == distinct)
    assert equal[0, 4] and equal.sum() == len(label) + 2
    np.testing.assert_array_equal(distinct[label >= 0], label[label >= 0])


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("pairs", ["all pairs", "all classes", "half"])
def test_distinct_labels_are_the_loss_of_clip(devices, pairs):
    outputs, batch = draw_outputs(), draw_batch(masked=3)
    batch["label"] = {
        "all pairs": jnp.full(16, -1),
        "all classes": 100 - 3 * jnp.arange(16),
        "half": jnp.where(jnp.arange(16) % 2, -1, 100 - jnp.arange(16)),
    }[pairs]
    ours = differentiate(make_objective(devices), outputs, batch)
    clip = differentiate(make_objective(devices, Clip), outputs, batch)
    jax.tree.map(np.testing.assert_array_equal, ours, clip)


def classify(features, weights, bias, label, smoothing):
    """Cross-entropy over the classes (UniCL eq. 4)."""
    targets = optax.smooth_labels(jax.nn.one_hot(label, len(weights)), smoothing)
    return optax.softmax_cross_entropy(features @ weights.T + bias, targets).mean()


def draw_classifier(images, classes, dim=6):
    rng = np.random.default_rng(2)
    shapes = (images, dim), (classes, dim), (classes,)
    return tuple(jnp.float32(rng.normal(size=shape)) for shape in shapes)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", [contrastive_loss, blockwise_contrastive_loss])
def test_each_class_text_once_is_cross_entropy_from_image_to_text(loss, smoothing):
    """§3.3: texts are vectors of a table with a bias, no length is normalized, and tau is 0."""
    classifier, label = draw_classifier(24, 5), jnp.arange(24) * 3 % 5

    def image_to_text(features, weights, bias):
        features = jnp.concatenate([features, jnp.ones((24, 1))], 1)
        weights = jnp.concatenate([weights, bias[:, None]], 1)
        labels = {"image_label": label, "text_label": jnp.arange(5)}
        return loss(features, weights, jnp.float32(1), label_smoothing=smoothing, **labels)[0]

    every = (0, 1, 2)
    ours = jax.jit(jax.value_and_grad(image_to_text, every))(*classifier)
    assert_close(ours, jax.value_and_grad(classify, every)(*classifier, label, smoothing))


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_table_of_classes_in_a_batch_of_all_of_them_is_cross_entropy(devices, times):
    """Through the objective, whose batch has as many texts as images, each class several times."""
    objective = make_objective(devices, direction="image_to_text", label_smoothing=0.1)
    size = 16 * times
    classifier, label = draw_classifier(size, 16), jnp.arange(size) * 5 % 16
    batch = {"label": label, "mask": jnp.ones(size, bool), "text_mask": jnp.ones((size, 1), bool)}

    def loss(features, weights, bias):
        features = jnp.concatenate([features, jnp.ones((size, 1))], 1)
        table = jnp.concatenate([weights, bias[:, None]], 1)
        outputs = {"zimg": features, "ztxt": table[label]}
        return objective.loss({"log_scale": jnp.float32(0)}, outputs, None, batch)[0]

    every = (0, 1, 2)
    ours, gradients = jax.jit(jax.value_and_grad(loss, every))(*classifier)
    wanted = jax.jit(jax.value_and_grad(classify, every))(*classifier, label, 0.1)
    assert_close((ours - np.log(times), gradients), wanted)


@pytest.mark.parametrize("devices", DEVICES)
def test_smoothed_targets_of_labels_and_pairs_by_hand(devices):
    """Classes with several rows, pairs with one, and padding at the end of an odd batch."""
    outputs, batch = draw_outputs(size=13), draw_batch(size=13, masked=2)
    objective = make_objective(devices, label_smoothing=0.1)
    value, (params_grad, outputs_grad) = differentiate(objective, outputs, batch)
    label = np.where(batch["label"] < 0, 100 + np.arange(13), batch["label"])
    assert len(set(label[:11])) < 8 and (label[:11] >= 100).sum() > 3
    (i2t, t2i), (zimg_grad, ztxt_grad, scale_grad) = contrast_by_hand(
        *(outputs["zimg"], outputs["ztxt"], 5.0, (0.5, 0.5)), *(label, label, 0.1),
        real=(batch["mask"], batch["mask"]),
    )  # fmt: skip
    np.testing.assert_allclose(value, (i2t + t2i) / 2, rtol=1e-5)
    assert_close(outputs_grad, {"zimg": zimg_grad, "ztxt": ztxt_grad})
    np.testing.assert_allclose(params_grad["log_scale"], 5 * scale_grad, rtol=1e-4)


def test_permutation_permutes_gradients():
    objective, outputs, batch = make_objective(8), draw_outputs(), draw_batch(masked=3)
    order = jax.random.permutation(jax.random.PRNGKey(0), 16)
    shuffle = lambda tree: {k: v[order] for k, v in tree.items()}  # noqa: E731
    value, (params_grad, outputs_grad) = differentiate(objective, outputs, batch)
    permuted = differentiate(objective, shuffle(outputs), shuffle(batch))
    assert_close(permuted, (value, (params_grad, shuffle(outputs_grad))))


@pytest.mark.parametrize("devices", DEVICES)
def test_several_texts_carry_the_label_of_their_image(devices):
    """By hand: a row of either softmax spreads its target over the real ones of its label."""
    outputs, batch = draw_outputs(texts=(3,)), draw_batch(masked=3, texts=(3,))
    labels = distinguish_pairs(batch["label"])
    directions = make_objective(devices).contrast(jnp.float32(5), outputs, batch, labels)

    real = (np.asarray(batch["mask"])[:, None] & np.asarray(batch["text_mask"])[..., 0]).ravel()
    label = np.asarray(distinguish_pairs(batch["label"]))
    zimg = np.float64(outputs["zimg"])[:13]
    ztxt = np.float64(outputs["ztxt"]).reshape(48, 8)[real]
    positive = label[:13, None] == np.repeat(label, 3)[real]
    logits = 5 * zimg @ ztxt.T
    rows = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    columns = logits - np.log(np.exp(logits).sum(0))
    image_to_text = -np.mean([row[p].mean() for row, p in zip(rows, positive, strict=True)])
    text_to_image = -np.mean([x[p].mean() for x, p in zip(columns.T, positive.T, strict=True)])
    np.testing.assert_allclose(directions, (image_to_text, text_to_image), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_direction_is_trained_and_the_other_logged(direction):
    outputs, batch = draw_outputs(), draw_batch()
    params = {"log_scale": jnp.float32(1)}
    loss, metrics = jax.jit(make_objective(direction=direction).loss)(params, outputs, None, batch)
    both, expected = jax.jit(make_objective().loss)(params, outputs, None, batch)
    assert_close(metrics, expected)
    losses = {
        "both": both,
        "image_to_text": expected["image_to_text_loss"],
        "text_to_image": expected["text_to_image_loss"],
    }
    np.testing.assert_allclose(loss, losses[direction], rtol=1e-6)
    assert len({float(x) for x in losses.values()}) == 3


@pytest.mark.slow
def test_the_scale_starts_at_e_and_is_bounded_after_the_update():
    objective = make_objective()
    params, _ = jax.jit(objective.init)(jax.random.PRNGKey(0), tiny.make_batch(2))
    np.testing.assert_allclose(params["log_scale"], 1, rtol=1e-6)
    outside = params | {"log_scale": jnp.float32(7)}
    np.testing.assert_allclose(objective.scale(objective.project(outside)), 100, rtol=1e-5)


def test_an_unknown_direction_is_named():
    with pytest.raises(
        ValueError, match="direction = 't2i' is unknown; known: both, image_to_text"
    ):
        make_objective(direction="t2i")


def step_gradients(devices=1, microbatches=1, texts=()):
    """Loss and gradients of one step, of params that do not depend on the number of devices."""
    objective = make_objective(devices)
    batch = tiny.make_batch(16, masked=1, texts=texts)
    batch["label"] = np.asarray(draw_batch()["label"])
    one = jax.tree.map(jnp.asarray, tiny.make_batch(1, texts=texts))
    arguments = (
        objective,
        *nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), one)),
        place_batch(batch, objective.mesh),
        jax.random.PRNGKey(1),
        objective.mesh,
    )
    if microbatches == 1:
        return jax.jit(lambda: full_gradients(*arguments)[:3:2])()
    return jax.jit(lambda: accumulated_gradients(*arguments, microbatches)[:3:2])()


@pytest.mark.slow
@pytest.mark.parametrize("texts", [(), (2,)], ids=str)
def test_devices_and_microbatches_change_nothing(texts):
    grads, loss = step_gradients(texts=texts)
    assert abs(float(grads["log_scale"])) > 1e-3
    for devices, microbatches in ((8, 1), (4, 2)):
        many = step_gradients(devices, microbatches, texts)
        np.testing.assert_allclose(many[1], loss, rtol=1e-5)
        for a, d in zip(jax.tree.leaves(many[0]), jax.tree.leaves(grads), strict=True):
            atol = 2e-5 * max(np.abs(d).max(), 1e-2)
            np.testing.assert_allclose(a, d, rtol=0, atol=atol)
