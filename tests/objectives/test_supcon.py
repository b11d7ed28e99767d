"""SupCon: the loss of projected views by class; evaluation sees the tower and not the head."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.models.dual_encoder import normalize
from big_align.objectives.supcon import SupCon
from big_align.parallel.batches import place_batch
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny
from tests.device_counts import DEVICES


def make_objective(devices=1, **options):
    # A group is the two views of an image: no image depends on another.
    model = tiny.make_model(group_size=2).clone(text=None)
    return SupCon(model, tiny.make_mesh(devices), **{"projection_dim": 8} | options)


def make_batch(size=16, views=2, masked=0):
    rng = np.random.default_rng(0)
    batch = tiny.make_batch(size, masked=masked)
    batch["image"] = rng.integers(0, 256, (size, views, 8, 8, 3)).astype(np.uint8)
    return batch | {"label": rng.integers(-1, 4, size).astype(np.int32)}


def make_params(objective, views=2):
    batch = jax.tree.map(jnp.asarray, make_batch(1, views))
    return nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))


def encode(objective, params, model_state, batch):
    run = jax.jit(lambda batch: objective.encode(params, model_state, batch, jax.random.PRNGKey(1)))
    return run(jax.tree.map(jnp.asarray, batch))[0]


@pytest.mark.parametrize("devices", DEVICES)
def test_golden(reference_dir, devices):
    golden = np.load(reference_dir / "losses.npz")
    # There the second views stand below the first.
    views = jnp.float32(golden["supcon_views"]).reshape(2, 24, -1).swapaxes(0, 1)
    batch = {"label": jnp.asarray(golden["supcon_label"][:24]), "mask": jnp.ones(24, bool)}
    objective = make_objective(devices, temperature=float(golden["supcon_temperature"]))
    loss, _ = jax.jit(objective.loss)({}, {"zviews": views}, None, batch)
    np.testing.assert_allclose(loss, golden["supcon_loss"], rtol=1e-5)


def draw_views(size=12, views=2):
    z = jax.random.normal(jax.random.PRNGKey(0), (size, views, 8))
    return z / jnp.linalg.norm(z, axis=2, keepdims=True)


@pytest.mark.slow
def test_a_captioned_image_is_a_class_of_its_own():
    objective, zviews, mask = make_objective(), draw_views(), jnp.arange(12) < 10
    label = jnp.where(jnp.arange(12) % 3 == 0, -1, jnp.arange(12) % 4)
    named = jnp.where(label < 0, 50 + jnp.arange(12), label)
    compute = jax.jit(objective.loss)
    losses = [
        compute({}, {"zviews": zviews}, None, {"label": x, "mask": mask})[0] for x in (label, named)
    ]
    np.testing.assert_array_equal(*losses)
    # Without any class, each view has the other as its only positive.
    rows = np.float64(zviews[:10].reshape(20, 8))
    logits = rows @ rows.T / 0.1
    np.fill_diagonal(logits, -np.inf)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    pairs = {"label": jnp.full(12, -1), "mask": mask}
    alone, _ = jax.jit(objective.loss)({}, {"zviews": zviews}, None, pairs)
    expected = -log_probs[np.arange(20), np.arange(20) ^ 1].mean()
    np.testing.assert_allclose(alone, expected, rtol=1e-5)


@pytest.mark.parametrize("views", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_order_of_images_and_views_does_not_matter(views):
    objective, zviews = make_objective(8), draw_views(views=views)
    batch = {"label": jnp.arange(12) % 5 - 1, "mask": jnp.arange(12) != 4}
    order = jax.random.permutation(jax.random.PRNGKey(1), 12)
    loss = jax.jit(jax.value_and_grad(lambda z, b: objective.loss({}, {"zviews": z}, None, b)[0]))
    value, grads = loss(zviews, batch)
    permuted = loss(zviews[order, ::-1], {k: v[order] for k, v in batch.items()})
    np.testing.assert_allclose(permuted[0], value, rtol=1e-6)
    np.testing.assert_allclose(permuted[1], grads[order, ::-1], atol=1e-6)


@pytest.mark.slow
def test_views_are_projected_one_by_one():
    """By hand: two layers with a relu between them, on the tower's features in training mode."""
    objective, batch = make_objective(), make_batch(4)
    params, model_state = make_params(objective)
    zviews = encode(objective, params, model_state, batch)["zviews"]

    features, _ = objective.model.apply(
        {"params": params["model"], **model_state},
        jnp.asarray(batch["image"].reshape(8, 8, 8, 3)),
        train=True,
        method="image_features",
        mutable=list(model_state),
    )
    hidden, projection = (params["head"][k] for k in ("hidden", "projection"))
    features = np.maximum(features @ hidden["kernel"] + hidden["bias"], 0)
    assert features.shape[1] == objective.model.image.output_dim
    expected = normalize(jnp.asarray(features @ projection["kernel"] + projection["bias"]))
    np.testing.assert_allclose(zviews.reshape(8, 8), expected, atol=1e-5)
    np.testing.assert_allclose(jnp.linalg.norm(zviews, axis=2), 1, rtol=1e-5)


@pytest.mark.slow
def test_evaluation_sees_the_tower_and_not_the_head():
    objective = make_objective()
    params, model_state = make_params(objective)
    assert set(params) == {"model", "head"} and set(params["model"]) == {"image"}
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(4))
    zimg = objective.embed_image(params, model_state, batch)
    other_head = params | {"head": jax.tree.map(jnp.zeros_like, params["head"])}
    np.testing.assert_array_equal(objective.embed_image(other_head, model_state, batch), zimg)
    features = objective.image_features(params, model_state, batch)
    np.testing.assert_allclose(zimg, normalize(features), rtol=1e-6)
    with pytest.raises(ValueError, match="supcon has no text side.*k-NN.*cross_entropy"):
        objective.embed_text(params, model_state, batch)


@pytest.mark.parametrize("image", [(4, 8, 8, 3), (4, 1, 8, 8, 3)], ids=str)
def test_fewer_than_two_views_are_named(image):
    objective = make_objective()
    batch = make_batch(4) | {"image": jnp.zeros(image, jnp.uint8)}
    with pytest.raises(ValueError, match="set config.data.views_per_image = 2"):
        jax.jit(objective.init)(jax.random.PRNGKey(0), batch)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"projection_dim": 0}])
def test_values_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_objective(**wrong)


def step_gradients(devices=1, microbatches=1, views=2):
    """Loss and gradients of one step, of params that do not depend on the number of devices."""
    objective = make_objective(devices)
    batch = place_batch(make_batch(16, views, masked=1), objective.mesh)
    params = make_params(objective, views)
    arguments = objective, *params, batch, jax.random.PRNGKey(1), objective.mesh
    if microbatches == 1:
        return jax.jit(lambda: full_gradients(*arguments)[:3:2])()
    return jax.jit(lambda: accumulated_gradients(*arguments, microbatches)[:3:2])()


@pytest.mark.slow
@pytest.mark.parametrize("views", [2, 4])
def test_devices_and_microbatches_change_nothing(views):
    grads, loss = step_gradients(views=views)
    for devices, microbatches in ((8, 1), (4, 2)):
        many = step_gradients(devices, microbatches, views)
        np.testing.assert_allclose(many[1], loss, rtol=1e-5)
        for a, d in zip(jax.tree.leaves(many[0]), jax.tree.leaves(grads), strict=True):
            assert np.abs(d).max() > 0
            atol = 2e-5 * max(np.abs(d).max(), 1e-2)
            np.testing.assert_allclose(a, d, rtol=0, atol=atol)
