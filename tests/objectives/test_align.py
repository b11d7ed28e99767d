"""ALIGN sums the directions and divides by its temperature; CLIP averages and multiplies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.losses.contrastive import contrastive_loss
from big_align.objectives.align import Align
from big_align.objectives.clip import Clip
from big_align.objectives.parts.contrast import DIRECTIONS, Contrast
from big_align.objectives.parts.encoders import real_texts
from tests import tiny
from tests.device_counts import DEVICES


def embeddings(size=16, dim=8):
    zimg, ztxt = np.random.default_rng(0).normal(size=(2, size, dim)).astype(np.float32)
    unit = lambda x: jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))  # noqa: E731
    return {"zimg": unit(zimg), "ztxt": unit(ztxt)}


def batch(size=16, masked=0):
    return {"mask": jnp.arange(size) < size - masked, "text_mask": jnp.ones((size, 1), bool)}


def test_loss_is_the_sum_at_a_divided_temperature():
    objective = Align(tiny.make_model(), tiny.make_mesh(8), temperature=0.2)
    outputs = embeddings()
    params = {"temperature": jnp.float32(0.25)}
    loss, metrics = jax.jit(objective.loss)(params, outputs, None, batch())
    towers = outputs["zimg"], outputs["ztxt"]
    expected = contrastive_loss(*towers, jnp.float32(4), label_smoothing=0.1)
    np.testing.assert_allclose(loss, sum(expected), rtol=1e-5)
    np.testing.assert_allclose(metrics["temperature"], 0.25)


@pytest.mark.slow
def test_a_fixed_temperature_is_no_parameter():
    objective = tiny.make_objective(tiny.make_mesh(), temperature=1 / 64, learn_temperature=False)
    params, _ = jax.jit(objective.init)(jax.random.PRNGKey(0), tiny.make_batch(1))
    assert "temperature" not in params
    np.testing.assert_allclose(objective.scale(params), 64)
    assert objective.project(params) is params


@pytest.mark.slow
def test_fewer_negatives_are_the_mean_over_groups_that_do_not_see_each_other():
    objective = Align(
        tiny.make_model(), tiny.make_mesh(2), negative_fraction=0.25, label_smoothing=0.0
    )
    outputs = embeddings()
    loss, _ = jax.jit(objective.loss)({"temperature": jnp.float32(0.5)}, outputs, None, batch())
    groups = [
        sum(contrastive_loss(outputs["zimg"][g::4], outputs["ztxt"][g::4], jnp.float32(2)))
        for g in range(4)
    ]
    np.testing.assert_allclose(loss, np.mean(groups), rtol=1e-5)
    whole = Align(tiny.make_model(), tiny.make_mesh(2), label_smoothing=0.0)
    whole, _ = jax.jit(whole.loss)({"temperature": jnp.float32(0.5)}, outputs, None, batch())
    assert loss < whole  # Fewer negatives are an easier question.


def test_clip_is_half_of_align_at_its_scale():
    outputs = embeddings()
    clip = Clip(tiny.make_model(), tiny.make_mesh())
    align = Align(tiny.make_model(), tiny.make_mesh(), label_smoothing=0.0)
    params = {"log_scale": jnp.float32(np.log(5.0))}
    loss, _ = jax.jit(clip.loss)(params, outputs, None, batch(masked=3))
    divided = {"temperature": jnp.float32(0.2)}
    expected, _ = jax.jit(align.loss)(divided, outputs, None, batch(masked=3))
    np.testing.assert_allclose(loss, expected / 2, rtol=1e-5)


def differentiate_by_hand(zimg, ztxt, scale, direction):
    """Eq. 2 of iCLIP, or its counterpart, and its slopes by the embeddings, in float64."""
    logits = scale * zimg @ ztxt.T
    axis = {"image_to_text": 1, "text_to_image": 0}[direction]
    share = np.exp(logits) / np.exp(logits).sum(axis, keepdims=True)
    slope = scale * (share - np.eye(len(zimg))) / len(zimg)
    return -np.log(np.diag(share)).mean(), {"zimg": slope @ ztxt, "ztxt": slope.T @ zimg}


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_clip_trains_both_directions_or_one(devices, direction):
    clip = Clip(tiny.make_model(), tiny.make_mesh(devices), direction=direction)
    params, outputs = {"log_scale": jnp.float32(np.log(5.0))}, embeddings()
    trained = jax.value_and_grad(
        lambda x: clip.loss(params, x, None, batch(masked=3)), has_aux=True
    )
    (loss, metrics), grads = jax.jit(trained)(outputs)
    real = {name: np.float64(x)[:-3] for name, x in outputs.items()}
    hand = {name: differentiate_by_hand(**real, scale=5, direction=name) for name in DIRECTIONS[1:]}
    for name, (value, _) in hand.items():  # both are logged
        np.testing.assert_allclose(metrics[f"{name}_loss"], value, rtol=1e-5)
    chosen = list(hand.values()) if direction == "both" else [hand[direction]]
    np.testing.assert_allclose(loss, np.mean([value for value, _ in chosen]), rtol=1e-5)
    for name, grad in grads.items():
        expected = np.mean([slopes[name] for _, slopes in chosen], axis=0)
        np.testing.assert_allclose(grad[:-3], expected, atol=1e-6)
        assert not grad[-3:].any()


@pytest.mark.parametrize(("learned", "projected"), [(7.0, 100), (3.0, math.exp(3))])
def test_the_scale_of_clip_is_bounded_from_above(learned, projected):
    clip = Clip(tiny.make_model(), tiny.make_mesh(), temperature=0.07, min_temperature=0.01)
    bounded = clip.project({"log_scale": jnp.float32(learned)})
    np.testing.assert_allclose(clip.scale(bounded), projected, rtol=1e-5)


@pytest.mark.slow
def test_clip_starts_at_its_temperature_and_beyond_its_bound_there_is_a_gradient():
    clip = Clip(tiny.make_model(), tiny.make_mesh(), temperature=0.07, min_temperature=0.01)
    params, _ = jax.jit(clip.init)(jax.random.PRNGKey(0), tiny.make_batch(1))
    np.testing.assert_allclose(clip.scale(params), 1 / 0.07, rtol=1e-5)
    outside = params | {"log_scale": jnp.float32(7.0)}
    # A projection leaves the gradient alone, where a clip inside the loss would stop it.
    gradient = jax.jit(jax.grad(lambda p: clip.loss(p, embeddings(), None, batch())[0]))(outside)
    assert float(jnp.abs(gradient["log_scale"])) > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0},
        {"label_smoothing": 1.0},
        {"negative_fraction": 0.3},
        {"negative_fraction": 0.0},
        {"direction": "none"},
    ],
)
def test_values_out_of_range_are_named(wrong):
    objective = Clip if "direction" in wrong else Align
    with pytest.raises(ValueError, match=next(iter(wrong))):
        objective(tiny.make_model(), tiny.make_mesh(), **wrong)


def test_groups_of_negatives_that_do_not_divide_the_batch_are_named():
    objective = Align(tiny.make_model(), tiny.make_mesh(), negative_fraction=1 / 49)
    with pytest.raises(UserError, match="= 1/49 makes 49 groups, which do not divide a batch of"):
        objective.loss({"temperature": jnp.float32(0.5)}, embeddings(), None, batch())


def test_a_group_without_a_real_row_takes_no_part_in_the_mean():
    outputs, real = embeddings(), np.arange(16) % 4 < 2  # the first two of four groups
    rows = batch() | {"mask": jnp.asarray(real)}
    contrast = Contrast(tiny.make_mesh(), negative_fraction=0.25)
    directions = jax.jit(contrast)(jnp.float32(2), outputs, rows)
    groups = [
        contrastive_loss(outputs["zimg"][g::4], outputs["ztxt"][g::4], jnp.float32(2))
        for g in range(2)
    ]
    np.testing.assert_allclose(directions, np.mean(groups, axis=0), rtol=1e-5)


def several_texts(size=16, texts=3, dim=8):
    """Outputs with several texts an image, and which of the texts there are."""
    rng = np.random.default_rng(1)
    ztxt = rng.normal(size=(size, texts, dim)).astype(np.float32)
    ztxt /= np.linalg.norm(ztxt, axis=2, keepdims=True)
    outputs = embeddings(size, dim) | {"ztxt": jnp.asarray(ztxt)}
    real = rng.random((size, texts)) < 0.7
    real[:, 0] = True
    return outputs, batch(size, masked=3) | {"text_mask": jnp.asarray(real)[:, :, None]}


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_all_texts_of_an_image_are_its_positives(devices):
    """By hand: the target of an image is spread over its texts; a text has one image."""
    objective = Align(tiny.make_model(), tiny.make_mesh(devices), label_smoothing=0.0)
    outputs, rows = several_texts()
    directions = objective.contrast(jnp.float32(2), outputs, rows)

    real = (np.asarray(rows["mask"])[:, None] & np.asarray(rows["text_mask"])[..., 0]).reshape(-1)
    owner = np.repeat(np.arange(16), 3)[real]
    zimg, ztxt = np.asarray(outputs["zimg"])[:13], np.asarray(outputs["ztxt"]).reshape(48, 8)[real]
    logits = 2 * zimg.astype(np.float64) @ ztxt.T
    rows_log = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    columns_log = logits - np.log(np.exp(logits).sum(0))
    image_to_text = -np.mean([rows_log[i, owner == i].mean() for i in range(13)])
    text_to_image = -np.mean(columns_log[owner, np.arange(len(owner))])
    np.testing.assert_allclose(directions, (image_to_text, text_to_image), rtol=1e-5)


@pytest.mark.slow
def test_one_text_among_several_places_is_the_loss_of_pairs():
    objective = Align(tiny.make_model(), tiny.make_mesh(2))
    outputs, rows = embeddings(), batch(masked=2)
    params = {"temperature": jnp.float32(0.5)}

    def differentiate(z, rows):
        return jax.jit(jax.value_and_grad(lambda z: objective.loss(params, z, None, rows)[0]))(z)

    single = differentiate(outputs, rows)
    noise = jax.random.normal(jax.random.PRNGKey(0), (16, 2, 8))
    noise /= jnp.linalg.norm(noise, axis=2, keepdims=True)
    padded = outputs | {"ztxt": noise.at[:, 0].set(outputs["ztxt"])}
    only_first = jnp.zeros((16, 2, 1), bool).at[:, 0].set(True)
    value, grads = differentiate(padded, rows | {"text_mask": only_first})
    np.testing.assert_allclose(value, single[0], rtol=1e-5)
    np.testing.assert_allclose(grads["zimg"], single[1]["zimg"], atol=1e-6)
    np.testing.assert_allclose(grads["ztxt"][:, 0], single[1]["ztxt"], atol=1e-6)
    assert not np.any(grads["ztxt"][:, 1])


def test_a_text_exists_if_any_of_its_tokens_does():
    lengths = np.array([[4, 1, 0], [2, 0, 3]])
    batch = {"mask": jnp.array([True, False]), "text_mask": jnp.arange(4) < lengths[..., None]}
    assert real_texts(batch).tolist() == [[True, True, False], [False] * 3]
