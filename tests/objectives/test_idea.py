"""IDEA: CLIP where nothing is found, and with what is found, the plain formula on what exists."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.config.components.signatures import make
from big_align.data.tags.tag_list import make_tag_list
from big_align.data.text.tokenizers import WordTokenizer
from big_align.losses.contrastive import contrastive_loss
from big_align.losses.tag_recognition import LOSSES, tag_recognition_loss
from big_align.objectives.clip import Clip
from big_align.objectives.idea import Idea
from big_align.parallel.batches import place_batch
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny
from tests.device_counts import DEVICES

TOKENIZER = WordTokenizer(tuple("abcdefghijklm"), tiny.LENGTH)
NAMES = ("a", "b c", "d", "e f g", "h")
TAGS = make_tag_list(NAMES, (50, 40, 20, 9, 6), TOKENIZER)
COUNT = len(NAMES)


def make_objective(devices=1, dropout=0.0, **options):
    model = options.pop("model", None) or tiny.make_model(group_size=2, dropout=dropout)
    options = {"decoder_width": 8} | options
    given = {"model": model, "mesh": tiny.make_mesh(devices), "tags": TAGS, "tokenizer": TOKENIZER}
    return make(Idea, options, "config.objective", **given)


def draw_tags(size, seed=3):
    """Lists of tags padded with -1, and longer ones that hold them."""
    rng = np.random.default_rng(seed)
    hot = rng.random((2, size, COUNT)) < 0.3
    hot[1] |= hot[0]
    lists = np.sort(np.where(hot, np.arange(COUNT), COUNT), axis=2)
    given, true = np.where(lists == COUNT, -1, lists).astype(np.int32)
    return {"tags": given, "true_tags": true}


def make_batch(objective, size=16, masked=1, texts=(), step=0):
    batch = tiny.make_batch(size, masked=masked, texts=texts) | draw_tags(size)
    batch = jax.tree.map(jnp.asarray, batch)
    return objective.augment(batch, jax.random.PRNGKey(0), jnp.int32(step))


BIAS = {"group_bias": (2.4, -3.0, 0.6, -0.3, 0.9), "bias": (2.4, -3.0, -3.0, -3.0, -3.0)}


def make_params(objective):
    """Fresh ones, but for a recognizer that finds tags in some images and in others none."""
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(2))
    params, state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
    for name in BIAS.keys() & set(params.get("recognizer", ())):
        params["recognizer"][name] = jnp.array(BIAS[name])
    return params, state


def differentiate(objective, params, state, batch, microbatches=1):
    """Returns loss, metrics and gradients of a step."""
    placed = place_batch(jax.tree.map(np.asarray, dict(batch)), objective.mesh)
    arguments = objective, params, state, placed, jax.random.PRNGKey(1), objective.mesh
    if microbatches > 1:
        arguments += (microbatches,)
    function = full_gradients if microbatches == 1 else accumulated_gradients
    grads, _, loss, metrics, _ = jax.jit(lambda: function(*arguments))()
    return loss, metrics, grads


def assert_close(actual, desired, tolerance=2e-5):
    """Compares pytrees, each array relative to its largest element."""
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        a, d = np.asarray(a), np.asarray(d)
        np.testing.assert_allclose(a, d, rtol=0, atol=tolerance * max(np.abs(d).max(), 1e-2))


@functools.cache
def encoded(masked=1, texts=(), step=0, **options):
    """Returns an objective on one device, its parameters and state, a batch, and its encoding."""
    objective = make_objective(**options)
    params, state = make_params(objective)
    batch = make_batch(objective, masked=masked, texts=texts, step=step)
    rng = jax.random.PRNGKey(1)
    return objective, params, state, batch, jax.jit(objective.encode)(params, state, batch, rng)[0]


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_without_a_new_tag_and_empty_texts_it_is_clip(devices):
    options = {"change_step": 5, "empty_texts": "left_out"}
    one, params, state, batch, outputs = encoded(step=4, **options)
    objective = make_objective(devices, **options)
    clip = Clip(objective.model, objective.mesh)
    rng = jax.random.PRNGKey(1)
    expected_outputs = jax.jit(clip.encode)(params, state, batch, rng)[0]
    np.testing.assert_allclose(outputs["zimg"], expected_outputs["zimg"], atol=1e-6)
    np.testing.assert_allclose(outputs["ztxt"][:, 0], expected_outputs["ztxt"], atol=1e-6)

    def contrast(objective, outputs):
        function = jax.value_and_grad(
            lambda p, x: objective.loss(p, x, None, batch), argnums=(0, 1), has_aux=True
        )
        return jax.jit(function)(params, outputs)

    (_, metrics), (grads, slopes) = contrast(objective, outputs)
    towers = {"zimg": outputs["zimg"], "ztxt": outputs["ztxt"][:, 0]}
    (loss, expected), (clip_grads, clip_slopes) = contrast(clip, towers)
    assert metrics["tags_found"] == metrics["images_with_new_text"] == 0
    assert_close({k: metrics[k] for k in expected}, expected, 1e-6)
    np.testing.assert_allclose(metrics["itc_loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(grads["log_scale"], clip_grads["log_scale"], rtol=1e-5)
    actual = {"zimg": slopes["zimg"], "ztxt": slopes["ztxt"][:, 0]}
    assert_close(actual, clip_slopes, 1e-6)
    assert not slopes["ztxt"][:, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_contrast_alone_is_clip_and_has_no_recognizer(devices):
    objective = make_objective(devices, dropout=0.1, recognition=False)
    clip = Clip(objective.model, objective.mesh)
    params, state = make_params(objective)
    assert params.keys() == {"model", "log_scale"}
    batch = make_batch(objective)
    assert_close(
        differentiate(objective, params, state, batch), differentiate(clip, params, state, batch), 0
    )
    with pytest.raises(ValueError, match="recognition = False trains no recognizer"):
        objective.recognize(params, state, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "texts"), [({}, ()), ({}, (2,)), ({"tag_to_text": False}, ())], ids=str
)
def test_loss_is_the_plain_formula_of_the_texts_that_exist(options, texts):
    """Sliced: neither padding nor texts that do not exist are there at all."""
    options = {"empty_texts": "left_out"} | options
    objective, params, state, batch, outputs = encoded(masked=2, texts=texts, **options)
    loss, metrics = jax.jit(objective.loss)(params, outputs, None, batch)
    given, found = objective.finder.find(batch, outputs["logits"])
    new = np.asarray(found.any(axis=1))
    assert 0 < new[:14].sum() < 14 and not new[14:].any()

    ztxt = np.asarray(outputs["ztxt"]).reshape(16, -1, outputs["ztxt"].shape[-1])
    exists = np.ones((16, 1), bool) if not texts else np.asarray(batch["text_mask"]).any(-1)
    if objective.finder.written is not None:
        exists = np.concatenate([exists, new[:, None]], axis=1)
    exists &= np.asarray(batch["mask"])[:, None]
    directions = contrastive_loss(
        outputs["zimg"][:14],
        jnp.asarray(ztxt[exists]),
        objective.scale(params),
        image_label=jnp.arange(14),
        text_label=jnp.asarray(np.nonzero(exists)[0]),
    )
    entropy = np.log(exists[:14].sum(axis=1)).mean()
    np.testing.assert_allclose(metrics["itc_loss"], (sum(directions) - entropy) / 2, rtol=1e-5)
    recognition = tag_recognition_loss(
        "splc", outputs["logits"][:14], given[:14], found[:14], jnp.ones(14, bool),
        jnp.asarray(TAGS.weights),
    )  # fmt: skip
    np.testing.assert_allclose(metrics["mlr_loss"], recognition, rtol=1e-5)
    np.testing.assert_allclose(loss, metrics["itc_loss"] + metrics["mlr_loss"], rtol=1e-6)


def differentiate_eq_6(z, real, new, reading):
    """Eq. 6 and its gradient in float64: M images and the texts of Algorithm 1, in its order.

    Args:
      z: `zimg` [m d], `ztxt` [m 2 d] and the logarithm of the scale.
      real: the images that are no padding.
      new: those in which tags are found.
      reading: of `empty_texts`.
    """
    images = np.flatnonzero(real)
    second = np.flatnonzero(real & new) if reading == "left_out" else images
    texts = [(i, 0) for i in images] + [(i, 1) for i in second]
    x = z["zimg"][images]
    y = np.stack([z["ztxt"][text] for text in texts])
    scale = np.exp(z["log_scale"])
    # The similarity matrix [M, texts], and the target of each pair before it is normalized.
    similarity = scale * x @ y.T
    target = np.array([[float(i == j and (k == 0 or new[j])) for j, k in texts] for i in images])
    value, slope = 0.0, np.zeros_like(similarity)
    for axis in (1, 0):
        mass = target.sum(axis, keepdims=True)
        goal = target / np.maximum(mass, 1)
        exp = np.exp(similarity)
        p = exp / exp.sum(axis, keepdims=True)
        divergence = np.where(goal > 0, goal * np.log(np.where(goal > 0, goal, 1) / p), 0).sum()
        rows = mass.size if axis == 0 and reading == "rows" else (mass > 0).sum()
        value += divergence / rows / 2
        slope += np.where(mass > 0, p - goal, 0) / rows / 2
    grads = {name: np.zeros_like(array) for name, array in z.items()}
    grads["zimg"][images] = scale * slope @ y
    for text, grad in zip(texts, scale * slope.T @ x, strict=True):
        grads["ztxt"][text] = grad
    grads["log_scale"] = (slope * similarity).sum()
    return value, grads


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("reading", ["candidates", "rows", "left_out"])
@pytest.mark.parametrize(
    ("size", "masked", "step"),
    [(13, 2, 0), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((16, 0, 0), (5, 1, -1)))],
)
def test_eq_6_is_that_of_numpy(devices, reading, size, masked, step):
    """Value and gradient, before (-1) and after tags are found; with `rows` as the authors do."""
    objective = make_objective(devices, empty_texts=reading)
    rng = np.random.default_rng(size)
    draw = rng.normal(size=(size, 3, 8)), rng.normal(size=(size, COUNT))
    unit = draw[0] / np.linalg.norm(draw[0], axis=-1, keepdims=True)
    if reading != "left_out":
        unit[1:, 2] = unit[0, 2]  # all empty texts have the same embedding
    z = {"zimg": unit[:, 0], "ztxt": unit[:, 1:], "log_scale": np.float64(1.3)}
    batch = make_batch(objective, size=size, masked=masked, step=step)
    given = (np.asarray(batch["tags"])[:, :, None] == np.arange(COUNT)).any(axis=1)
    new = (1 / (1 + np.exp(-draw[1])) > 0.6) & ~given if step == 0 else np.zeros_like(given)
    real, new = np.asarray(batch["mask"]), new.any(axis=1)
    assert step < 0 or 0 < new[real].sum() < real.sum()

    def loss(z):
        outputs = {"zimg": z["zimg"], "ztxt": z["ztxt"], "logits": jnp.float32(draw[1])}
        _, metrics = objective.loss({"log_scale": z["log_scale"]}, outputs, None, batch)
        return metrics["itc_loss"]

    actual = jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.float32, z))
    expected = differentiate_eq_6(z, real, new, reading)
    np.testing.assert_allclose(actual[0], expected[0], rtol=2e-6)
    for name, grad in expected[1].items():
        np.testing.assert_allclose(actual[1][name], grad, rtol=0, atol=1e-6 * np.abs(grad).max())


def test_an_empty_text_is_a_candidate_by_hand():
    """One image, its caption and an empty text: eq. 6 is half of log(1 + e^(s(b - a)))."""
    a, b, scale = 0.8, 0.6, 2.0
    outputs = {
        "zimg": jnp.float32([[1, 0]]),
        "ztxt": jnp.float32([[[a, 0.6], [b, -0.8]]]),
        "logits": jnp.full((1, COUNT), -9.0),
    }
    expected = {"candidates": np.log1p(np.exp(scale * (b - a))) / 2, "rows": None, "left_out": 0}
    expected["rows"] = expected["candidates"]
    for reading, value in expected.items():
        objective = make_objective(empty_texts=reading)
        batch = make_batch(objective, size=1, masked=0)
        params = {"log_scale": jnp.log(scale)}
        _, metrics = objective.loss(params, outputs, None, batch)
        np.testing.assert_allclose(metrics["itc_loss"], value, atol=1e-6)


@pytest.mark.slow
def test_an_empty_text_is_that_of_an_empty_caption():
    objective, params, state, batch, outputs = encoded(step=4, change_step=5)
    text, text_mask = map(jnp.asarray, TOKENIZER([""]))
    empty = objective.embed_text(params, state, {"text": text, "text_mask": text_mask})
    np.testing.assert_allclose(outputs["ztxt"][:, 1], jnp.repeat(empty, 16, axis=0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_texts_that_are_left_out_take_no_part(devices):
    """Whatever their embedding is, value and gradient stay, and it gets none itself."""
    _, params, state, batch, outputs = encoded(empty_texts="left_out")
    objective = make_objective(devices, empty_texts="left_out")
    new = objective.finder.find(batch, outputs["logits"])[1].any(axis=1)
    assert new.any() and not new.all()
    other = jnp.roll(outputs["zimg"], 3, axis=0)
    moved = outputs | {
        "ztxt": outputs["ztxt"].at[:, 1].set(jnp.where(new[:, None], outputs["ztxt"][:, 1], other))
    }
    loss = jax.jit(
        jax.value_and_grad(lambda p, x: objective.loss(p, x, None, batch)[0], argnums=(0, 1))
    )
    actual, expected = loss(params, moved), loss(params, outputs)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    grad = np.asarray(actual[1][1]["ztxt"])
    assert not grad[~np.asarray(new), 1].any() and not grad[15].any()
    assert np.abs(grad[np.asarray(new), 1]).max(axis=1).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("retain", [True, False])
def test_a_new_text_is_that_of_the_tags(retain):
    """Its embedding is that of a caption with the same words."""
    objective, params, state, batch, outputs = encoded(retain=retain)
    given, found = objective.finder.find(batch, outputs["logits"])
    rows = np.flatnonzero(found.any(axis=1))
    chosen = np.asarray(found | given if retain else found)[rows]
    sentences = []
    for row in chosen:
        words = [NAMES[tag].split() for tag in np.flatnonzero(row)]
        while sum(map(len, words)) > tiny.LENGTH - 1:
            words.pop()
        sentences.append(" ".join(word for tag in words for word in tag))
    text, text_mask = map(jnp.asarray, TOKENIZER(sentences))
    ztxt = objective.embed_text(params, state, {"text": text, "text_mask": text_mask})
    np.testing.assert_allclose(outputs["ztxt"][rows, 1], ztxt, atol=1e-5)
    captions = objective.embed_text(params, state, batch)
    np.testing.assert_allclose(outputs["ztxt"][:, 0], captions, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("head", "texts"), [("ml_decoder", ()), ("cls", (2,))], ids=str)
def test_devices_and_microbatches_change_nothing(head, texts):
    def run(devices, microbatches=1):
        objective = make_objective(devices, head=head)
        if head == "ml_decoder":
            objective.scorer.head = objective.scorer.head.clone(dropout=0.0)
        params, state = make_params(objective)
        batch = make_batch(objective, texts=texts)
        return differentiate(objective, params, state, batch, microbatches)

    expected = run(1)
    assert 0 < expected[1]["images_with_new_text"] < 1
    for name in ("model", "recognizer", "log_scale"):
        assert max(np.abs(x).max() for x in jax.tree.leaves(expected[2][name])) > 1e-3
    for other in (run(8), run(4, 2)):
        assert_close(other, expected)


@pytest.mark.slow
def test_gradient_is_that_of_finite_differences():
    """Also through the recognizer, whose finds are fixed on either side of a point."""
    objective, params, _, batch, outputs = encoded()
    loss = jax.jit(lambda x, p: objective.loss(p, x, None, batch)[0])
    grads = jax.grad(loss)(outputs, params)
    find = objective.finder.find
    found = find(batch, outputs["logits"])[1]
    rng, step = np.random.default_rng(0), 1e-3
    for name, grad in grads.items():
        way = jnp.float32(rng.choice([-1.0, 1.0], grad.shape))
        ahead, back = ({**outputs, name: outputs[name] + s * step * way} for s in (1, -1))
        for moved in (ahead, back):
            np.testing.assert_array_equal(find(batch, moved["logits"])[1], found)
        slope = (loss(ahead, params) - loss(back, params)) / (2 * step)
        np.testing.assert_allclose((grad * way).sum(), slope, rtol=2e-2, atol=2e-3)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("name", LOSSES)
def test_finds_do_not_depend_on_the_loss_and_what_is_true_is_measured(name):
    _, params, _, batch, outputs = encoded()
    objective = make_objective(loss=name)
    measure = jax.jit(lambda batch: objective.loss(params, outputs, None, batch)[1])
    metrics = measure(batch)
    real = np.arange(15)
    given, true = (
        (np.asarray(batch[k])[real, :, None] == np.arange(COUNT)).any(1)
        for k in ("tags", "true_tags")
    )
    found = (1 / (1 + np.exp(-np.asarray(outputs["logits"])[real])) > 0.6) & ~given
    expected = {
        "tags_found": found.sum() / 15,
        "images_with_new_text": found.any(1).mean(),
        "found_precision": (found & true).sum() / found.sum(),
        "found_recall": (found & true).sum() / (true & ~given).sum(),
    }
    for key, value in expected.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-6)
    unknown = {k: v for k, v in batch.items() if k != "true_tags"}
    assert metrics.keys() - measure(unknown).keys() == {"found_precision", "found_recall"}


@pytest.mark.parametrize("head", [pytest.param("ml_decoder", marks=pytest.mark.slow), "cls"])
def test_at_the_start_every_tag_has_its_prior(head):
    objective = make_objective(head=head, prior=0.03)
    batch = make_batch(objective)
    params, state = nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))
    name = "group_bias" if head == "ml_decoder" else "bias"
    np.testing.assert_allclose(jax.nn.sigmoid(params["recognizer"][name]), 0.03, rtol=1e-5)


def test_finding_begins_at_its_step():
    objective = make_objective(change_step=7)
    for step in (0, 6, 7, 8):
        np.testing.assert_array_equal(make_batch(objective, step=step)["correcting"], step >= 7)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ml_decoder", "cls"])
def test_recognition_reads_its_head_in_evaluation_mode(head):
    objective, params, state, batch, _ = encoded(head=head)
    features, tokens = objective.model.apply(
        {"params": params["model"], **state}, batch["image"], method="image_tokens"
    )
    np.testing.assert_array_equal(features, objective.image_features(params, state, batch))
    logits = objective.recognize(params, state, batch)
    read = tokens if head == "ml_decoder" else features
    expected = objective.scorer.head.apply({"params": params["recognizer"]}, read)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert logits.shape == (16, COUNT) and np.std(logits, axis=0).min() > 0


def recognition_part(tree):
    """What recognition trains, of parameters or gradients of a whole objective."""
    return {"model": {"image": tree["model"]["image"]}, "recognizer": tree["recognizer"]}


@functools.cache
def differentiate_recognition_of_both():
    """Loss and gradients of the recognition loss alone, of an objective with both."""
    objective = make_objective(tag_to_text=False, dropout=0.1)
    params, state = make_params(objective)
    # A fresh head hardly listens to the image.
    louder = lambda x: 5 * x if x.ndim > 1 else x  # noqa: E731
    params["recognizer"] = jax.tree.map(louder, params["recognizer"])
    batch, rng = make_batch(objective, masked=2), jax.random.PRNGKey(1)

    def mlr(params):
        outputs, _ = objective.encode(params, state, batch, rng)
        loss, metrics = objective.loss(params, outputs, None, batch)
        return metrics["mlr_loss"], loss

    (value, whole), grads = jax.jit(jax.value_and_grad(mlr, has_aux=True))(params)
    assert whole > value + 0.1  # contrast is not nothing
    return params, state, batch, value, grads


@pytest.mark.parametrize("head", [pytest.param("ml_decoder", marks=pytest.mark.slow), "cls"])
def test_recognition_alone_has_nothing_that_contrast_trains(head):
    """Table 1, row 2: neither text tower nor projection nor temperature are there."""
    objective = make_objective(head=head, contrast=False, retain=False)
    params, state = make_params(objective)
    assert params.keys() == {"model", "recognizer"} and params["model"].keys() == {"image"}
    batch = make_batch(objective)
    assert objective.scale(params) is None
    outputs = jax.eval_shape(objective.encode, params, state, batch, jax.random.PRNGKey(1))[0]
    assert outputs.keys() == {"logits"}
    # Texts are read neither by encoder nor by loss: there need be none.
    without = {k: v for k, v in batch.items() if not k.startswith("text")}
    whole = jax.make_jaxpr(lambda p, b: _recognize_loss(objective, p, state, b))
    assert str(whole(params, batch).jaxpr.eqns) == str(whole(params, without).jaxpr.eqns)
    with pytest.raises(ValueError, match="contrast = False has no text side"):
        objective.embed_text(params, state, batch)


def _recognize_loss(objective, params, state, batch):
    outputs, _ = objective.encode(params, state, batch, jax.random.PRNGKey(1))
    return objective.loss(params, outputs, None, batch)[0]


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_recognition_alone_is_the_recognition_loss_of_both(devices):
    """Value, gradients and dropout; what only contrast trains has none of this loss."""
    whole, state, batch, expected, expected_grads = differentiate_recognition_of_both()
    for name in ("text", "project_text", "project_image"):
        grads = expected_grads["model"].get(name, {})
        assert all(not np.asarray(x).any() for x in jax.tree.leaves(grads))
    assert not expected_grads["log_scale"].any()

    objective = make_objective(devices, contrast=False, dropout=0.1)
    params = recognition_part(whole)
    state = {k: {"image": v["image"]} for k, v in state.items()}
    placed = place_batch(jax.tree.map(np.asarray, dict(batch)), objective.mesh)
    loss, grads = jax.jit(
        jax.value_and_grad(lambda params: _recognize_loss(objective, params, state, placed))
    )(params)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_close(grads, recognition_part(expected_grads), 2e-5)
    assert max(np.abs(x).max() for x in jax.tree.leaves(grads["model"])) > 1e-3
    if devices == 8:  # and by micro-batches, but for dropout
        still = make_objective(4, contrast=False)
        still.scorer.head = still.scorer.head.clone(dropout=0.0)
        runs = [differentiate(still, params, state, batch, count) for count in (1, 2)]
        assert_close(runs[1], runs[0])


@pytest.mark.slow
def test_recognition_alone_finds_the_same_tags():
    objective, params, state, batch, outputs = encoded()
    alone = make_objective(contrast=False)
    find = lambda o: o.finder.find(batch, outputs["logits"])  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, find(alone), find(objective))
    read = [o.recognize(recognition_part(params), state, batch) for o in (alone, objective)]
    np.testing.assert_array_equal(*read)


@pytest.mark.parametrize("contrast", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_linear_head_learns_the_same_from_features_of_a_locked_tower(contrast):
    heads = {"image_projection": True, "embedding_dim": 8}
    model = tiny.make_model().clone(locked=("image",), **heads)
    objective = make_objective(model=model, head="cls", contrast=contrast)
    assert objective.encoder.takes_features == ("image_embedding",)
    assert objective.frozen == ("model/image",)
    params, state = make_params(objective)
    batch = make_batch(objective, size=8, masked=2)
    expected = differentiate(objective, params, state, batch)
    features = {"image_embedding": objective.image_features(params, state, batch)}
    without = {k: v for k, v in batch.items() if k != "image"}
    assert_close(differentiate(objective, params, state, without | features), expected)
    grads = expected[2]
    assert np.any(grads["recognizer"]["kernel"])
    assert not any(np.any(x) for x in jax.tree.leaves(grads["model"]["image"]))
    assert make_objective(model=model, contrast=contrast).encoder.takes_features == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrast": False, "recognition": False}, "both False: nothing is trained"),
        ({"head": "mldecoder"}, "head = 'mldecoder' .* 'ml_decoder'.*; known: ml_decoder, cls"),
        ({"loss": "asl"}, "loss = 'asl' is unknown; known: bce, weighted_bce, splc, splc_focal"),
        ({"prior": 0.0}, r"prior = 0.0 is not in \(0, 1\)"),
        ({"threshold": 1.0}, r"threshold = 1.0 is not in \(0, 1\)"),
        ({"empty_texts": "no"}, "empty_texts = 'no' is unknown; known: candidates, rows, left_out"),
        ({"change_step": -1}, "change_step = -1 must be at least 0"),
        ({"decoder_width": 20}, "decoder_width = 20 is no multiple of the 8 heads"),
    ],
)
def test_settings_that_do_not_fit_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        make_objective(**options)
