"""MixUp and CutMix: pixels, fractions, and losses against soft targets written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.core.types import Objective
from big_align.objectives.cross_entropy import CrossEntropy
from big_align.objectives.parts.mixing import MixedLabels, draw_box, pair_rows
from big_align.objectives.unicl import Unicl
from big_align.parallel.batches import place_batch
from big_align.training.step import full_gradients
from tests import tiny
from tests.device_counts import DEVICES

CLASSES = 4
BOTH = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}
MIXUP, CUTMIX = BOTH | {"cutmix_alpha": 0.0}, BOTH | {"mixup_alpha": 0.0}


def make_cross_entropy(devices=1, **options):
    inner = CrossEntropy(tiny.make_model(2).clone(text=None), tiny.make_mesh(devices), CLASSES)
    return MixedLabels(inner, **(BOTH | options))


def make_batch(size=16, masked=0, seed=0):
    """Rows with and without labels; equal labels have equal texts, as class texts do."""
    batch = tiny.make_batch(size, seed, masked)
    label = np.random.default_rng(seed).integers(-1, CLASSES, size, np.int32)
    text = np.where(label[:, None] >= 0, label[:, None] + 1, batch["text"]).astype(np.int32)
    return jax.tree.map(jnp.asarray, batch | {"label": label, "text": text})


def augment(objective, batch, seed=0):
    return jax.jit(objective.augment)(batch, jax.random.PRNGKey(seed), jnp.int32(0))


@pytest.mark.slow
def test_rows_are_paired_from_the_outside_in():
    eligible = np.array([1, 0, 1, 1, 0, 1, 1, 0], bool)
    assert pair_rows(jnp.asarray(eligible)).tolist() == [6, 1, 5, 3, 4, 2, 0, 7]
    for seed in range(5):
        eligible = np.random.default_rng(seed).random(13) < 0.2 * seed
        partner = np.asarray(pair_rows(jnp.asarray(eligible)))
        np.testing.assert_array_equal(partner[partner], np.arange(13))
        np.testing.assert_array_equal(eligible[partner], eligible)
        assert (partner[eligible] == np.flatnonzero(eligible)[::-1]).all()


def test_mixup_by_hand():
    batch = make_batch(masked=3)
    mixed = augment(make_cross_entropy(**MIXUP), batch)
    fraction = np.asarray(mixed["mix_fraction"])
    assert (fraction == fraction[0]).all() and 0 < fraction[0] < 1
    partner = np.asarray(mixed["partner"])
    np.testing.assert_array_equal(mixed["partner_label"], np.asarray(batch["label"])[partner])
    own = np.asarray(batch["image"], np.float64)
    expected = fraction[0] * own + (1 - fraction[0]) * own[partner]
    assert mixed["image"].dtype == jnp.uint8
    assert np.abs(mixed["image"] - expected).max() <= 0.5 + 1e-4
    alone = ~np.asarray(batch["mask"]) | np.asarray(batch["label"] < 0)
    np.testing.assert_array_equal(partner[alone], np.flatnonzero(alone))
    np.testing.assert_array_equal(mixed["image"][alone], batch["image"][alone])
    assert (partner != np.arange(16)).sum() >= 4


def test_cutmix_takes_a_box_whose_pixels_are_its_fraction():
    """Each image has a color of its own, so that every pixel tells whose it is."""
    batch = make_batch()
    color = np.arange(16, dtype=np.uint8)[:, None, None, None]
    batch |= {"image": jnp.asarray(np.broadcast_to(color, (16, 12, 10, 3)))}
    fractions = []
    cutmix = jax.jit(make_cross_entropy(**CUTMIX).augment)
    for seed in range(8):
        mixed = cutmix(batch, jax.random.PRNGKey(seed), jnp.int32(0))
        image, partner = np.asarray(mixed["image"]), np.asarray(mixed["partner"])
        fractions.append(float(mixed["mix_fraction"][0]))
        for row in range(16):
            own = (image[row] == row).all(-1)
            assert (image[row][~own] == partner[row]).all()
            expected = 1.0 if partner[row] == row else fractions[-1]
            np.testing.assert_allclose(own.mean(), expected, atol=1e-6)
    assert len(set(fractions)) > 4


@pytest.mark.parametrize("fraction, area", [(0.75, 10 * 8), (0.0, 20 * 16), (1.0, 0)])
def test_a_box_has_its_area_except_where_it_is_clipped(fraction, area):
    keys = jax.random.split(jax.random.PRNGKey(0), 64)
    boxes = jax.vmap(lambda key: draw_box(key, (20, 16), jnp.float32(fraction)))(keys)
    counts = np.asarray(boxes.sum((1, 2)))
    assert counts.max() == area and (area == 0 or len(np.unique(counts)) > 4)
    for box in np.asarray(boxes)[counts > 0]:
        rows, columns = (np.flatnonzero(box.any(axis)) for axis in (1, 0))
        assert box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        assert box.sum() == len(rows) * len(columns)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_the_fraction_of_mixup_is_that_of_beta(alpha):
    objective = make_cross_entropy(mixup_alpha=alpha, cutmix_alpha=0.0)
    batch = make_batch(4)
    keys = jax.random.split(jax.random.PRNGKey(0), 4000)
    draw = jax.vmap(lambda key: objective.augment(batch, key, jnp.int32(0))["mix_fraction"][0])
    fraction = np.asarray(jax.jit(draw)(keys))
    np.testing.assert_allclose(fraction.mean(), 0.5, atol=0.02)
    np.testing.assert_allclose(fraction.var(), 1 / (4 * (2 * alpha + 1)), rtol=0.06)


@pytest.mark.slow
def test_the_choice_is_by_its_probabilities_and_by_the_key_alone():
    batch = make_batch()
    image = np.asarray(batch["image"])

    def kinds(**options):
        augment = jax.jit(make_cross_entropy(**options).augment)
        for seed in range(40):
            rng = jax.random.PRNGKey(seed)
            mixed, again = (augment(batch, rng, jnp.int32(0)) for _ in range(2))
            jax.tree.map(np.testing.assert_array_equal, mixed, again)
            kept = np.asarray(mixed["image"])
            whose = (kept == image) | (kept == image[np.asarray(mixed["partner"])])
            yield "none" if mixed["mix_fraction"][0] == 1 else "cut" if whose.all() else "mix"

    assert set(kinds(switch_probability=0.0)) == {"mix"}
    assert set(kinds(probability=0.0)) == {"none"}
    drawn = list(kinds(probability=0.5, switch_probability=0.5))
    assert 10 < drawn.count("none") < 32 and {"mix", "cut"} < set(drawn)


def test_a_batch_that_is_not_mixed_has_the_loss_of_the_objective():
    objective = make_cross_entropy(probability=0.0)
    batch = make_batch()
    mixed = augment(objective, batch)
    np.testing.assert_array_equal(mixed["image"], batch["image"])
    params = draw_head()
    outputs = {"features": jax.random.normal(jax.random.PRNGKey(1), (16, 16))}
    loss = jax.jit(objective.loss)(params, outputs, None, mixed)
    alone = jax.jit(objective.objective.loss)(params, outputs, None, batch)
    jax.tree.map(np.testing.assert_array_equal, loss, alone)


def draw_head():
    kernel = jax.random.normal(jax.random.PRNGKey(0), (16, CLASSES))
    return {"classifier": {"kernel": kernel, "bias": jnp.zeros(CLASSES)}}


def test_cross_entropy_is_that_of_soft_targets():
    objective = make_cross_entropy()
    mixed = augment(objective, make_batch(masked=2), seed=3)
    features = jax.random.normal(jax.random.PRNGKey(1), (16, 16))
    loss, _ = jax.jit(objective.loss)(draw_head(), {"features": features}, None, mixed)

    rows = np.flatnonzero(mixed["mask"] & (mixed["label"] >= 0))
    fraction = float(mixed["mix_fraction"][0])
    assert 0.01 < fraction < 0.99
    one_hot = np.eye(CLASSES)
    targets = fraction * one_hot[mixed["label"][rows]]
    targets += (1 - fraction) * one_hot[mixed["partner_label"][rows]]
    logits = np.asarray(features)[rows] @ np.asarray(draw_head()["classifier"]["kernel"])
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(loss, -(targets * log_probs).sum(1).mean(), rtol=1e-5)


@pytest.mark.parametrize("devices", DEVICES)
def test_unicl_is_that_of_soft_targets_in_both_directions(devices):
    """A text keeps its class; an image is positive for the texts of both of its classes."""
    objective = MixedLabels(Unicl(tiny.make_model(2), tiny.make_mesh(devices)), **BOTH)
    mixed = augment(objective, make_batch(), seed=3)
    fraction, label = float(mixed["mix_fraction"][0]), np.asarray(mixed["label"])
    assert 0.01 < fraction < 0.99
    text_class = np.where(label < 0, -1 - np.arange(16), label)
    rng = np.random.default_rng(0)
    zimg, ztxt = rng.normal(size=(2, 16, 8))
    ztxt = rng.normal(size=(32, 8))[text_class]  # One text a class.
    zimg, ztxt = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (zimg, ztxt))

    logits = 3 * zimg @ ztxt.T
    expected = 0
    partners_class = text_class[mixed["partner"]]
    for weight, image_class in ((fraction, text_class), (1 - fraction, partners_class)):
        positive = image_class[:, None] == text_class
        rows = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        columns = logits - np.log(np.exp(logits).sum(0))
        i2t = -(positive / positive.sum(1, keepdims=True) * rows).sum(1).mean()
        t2i = -(positive / positive.sum(0) * columns).sum(0).mean()
        expected += weight * (i2t + t2i) / 2
    params = {"log_scale": jnp.float32(np.log(3))}
    outputs = {"zimg": jnp.float32(zimg), "ztxt": jnp.float32(ztxt)}
    loss, metrics = jax.jit(objective.loss)(params, outputs, None, mixed)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["temperature"], 1 / 3, rtol=1e-5)


def test_a_row_that_is_wholly_its_partner_has_its_texts_and_no_text_where_it_has_none():
    """Half of the rows have one text, not two: a missing one stays missing in its partner's row."""
    objective = MixedLabels(Unicl(tiny.make_model(2), tiny.make_mesh(1)), **BOTH)
    batch = augment(objective, make_batch(), seed=3)
    rng = np.random.default_rng(1)
    outputs = {"zimg": rng.normal(size=(16, 8)), "ztxt": rng.normal(size=(16, 2, 8))}
    outputs = {
        k: jnp.float32(x / np.linalg.norm(x, axis=-1, keepdims=True)) for k, x in outputs.items()
    }
    text = jnp.stack([batch["text"]] * 2, axis=1)
    one_text = jnp.arange(16) < 8  # pairs go from the outside in: each has one of both kinds
    text_mask = jnp.ones(text.shape, bool).at[:, 1].set(~one_text[:, None])
    batch |= {"text": text, "text_mask": text_mask, "mix_fraction": jnp.zeros(16)}
    partner = np.asarray(batch["partner"])
    assert (np.asarray(one_text)[partner] != np.asarray(one_text)).any()

    params = {"log_scale": jnp.float32(np.log(3))}
    loss, _ = jax.jit(objective.loss)(params, outputs, None, batch)
    theirs = batch | {k: batch[k][partner] for k in ("text", "text_mask", "label")}
    replaced = outputs | {"ztxt": outputs["ztxt"][partner]}
    expected, _ = jax.jit(objective.objective.loss)(params, replaced, None, theirs)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.slow
def test_eight_devices_equal_one():
    def run(devices):
        objective = make_cross_entropy(devices)
        mesh, rng = objective.mesh, jax.random.PRNGKey(3)
        batch = make_batch(masked=1)
        params, model_state = jax.jit(objective.init)(jax.random.PRNGKey(0), batch)
        placed = place_batch(jax.tree.map(np.asarray, batch), mesh)

        @jax.jit
        def step(batch):
            batch = objective.augment(batch, rng, jnp.int32(0))
            gradients = full_gradients(objective, params, model_state, batch, rng, mesh)
            return batch, gradients[0], gradients[2]

        return jax.tree.map(np.asarray, step(placed))

    (batch, grads, loss), (batch_one, grads_one, loss_one) = run(8), run(1)
    jax.tree.map(np.testing.assert_array_equal, batch, batch_one)
    np.testing.assert_allclose(loss, loss_one, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_one), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * max(1, np.abs(b).max()))


def test_everything_else_is_the_objectives():
    objective = make_cross_entropy()
    inner = objective.objective
    assert isinstance(objective, Objective)
    for name in ("init", "encode", "prepare", "project", "classify", "embed_image", "frozen"):
        assert getattr(objective, name) == getattr(inner, name)
    assert not hasattr(objective, "directions")


def test_several_views_cannot_be_mixed():
    batch = make_batch()
    views = batch | {"image": jnp.stack([batch["image"]] * 2, axis=1)}
    with pytest.raises(ValueError, match="views_per_image = 1"):
        make_cross_entropy().augment(views, jax.random.PRNGKey(0), jnp.int32(0))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"mixup_alpha": -1.0}, "mixup_alpha = -1.0 must be 0 or a positive number"),
        ({"cutmix_alpha": float("nan")}, "cutmix_alpha = nan must be"),
        ({"probability": 1.5}, "probability = 1.5 is not in"),
        ({"switch_probability": -0.5}, "switch_probability = -0.5 is not in"),
        ({"mixup_alpha": 0.0, "cutmix_alpha": 0.0}, "nothing to mix by"),
    ],
)
def test_impossible_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_cross_entropy(**options)


@pytest.mark.parametrize("lacking", [{"table_sizes": {"centers": 9}}, {"recognize": None}])
def test_an_objective_of_clusters_or_tags_cannot_be_mixed(lacking):
    inner = CrossEntropy(tiny.make_model(2).clone(text=None), tiny.make_mesh(), CLASSES)
    inner.__dict__.update(lacking)
    with pytest.raises(ValueError, match="not the clusters or tags that the objective learns from"):
        MixedLabels(inner, **BOTH)
