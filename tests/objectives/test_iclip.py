"""iCLIP: one softmax over all classes and the batch's captions, and what it is in special cases."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.data.labels.classes import ClassList
from big_align.data.text.tokenizers import WordTokenizer
from big_align.objectives.align import Align
from big_align.objectives.iclip import Iclip
from big_align.objectives.parts.contrast import distinguish_pairs
from big_align.objectives.unicl import Unicl
from big_align.parallel.batches import place_batch
from big_align.training.step import accumulated_gradients, full_gradients
from tests import tiny
from tests.device_counts import DEVICES

TOKENIZER = WordTokenizer(("a", *(f"w{i}" for i in range(12))), tiny.LENGTH)
PARAMS = {"log_scale": jnp.float32(np.log(6.0))}
SIZE, DIM = 16, 16  # the width of the tiny towers


def make_classes(count):
    """Names of one or two words."""
    names = [f"w{i % 12}" if i < 12 else f"w{i // 12} w{i % 12}" for i in range(count)]
    return ClassList.from_names(names)


def make_iclip(devices=1, classes=13, **options):
    classes = make_classes(classes) if isinstance(classes, int) else classes
    model, mesh = tiny.make_model(group_size=2), tiny.make_mesh(devices)
    return Iclip(model, mesh, classes, TOKENIZER, **{"template": "a {}"} | options)


def draw_unit(seed, *shape):
    x = jax.random.normal(jax.random.key(seed), shape)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def make_rows(label, texts=None, masked=0):
    """A batch without images, and the outputs of the towers for it."""
    size = len(label)
    shape = (size,) if texts is None else (size, texts)
    real = np.random.default_rng(1).random(shape) < 0.7
    real[..., 0 if texts else slice(None)] = True
    batch = {
        "label": jnp.asarray(label, jnp.int32),
        "mask": jnp.arange(size) < size - masked,
        "text_mask": jnp.asarray(real)[..., None],
    }
    return {"zimg": draw_unit(1, size, DIM), "ztxt": draw_unit(2, *shape, DIM)}, batch


def differentiate(loss, *arrays):
    """Value and gradients of the first of what `loss` returns, by parameters and embeddings."""
    run = jax.jit(jax.value_and_grad(lambda *x: loss(*x)[0], argnums=range(len(arrays))))
    return run(*arrays)


def assert_close(actual, desired, rtol=2e-5):
    """Compares pytrees, each array relative to its largest element."""
    for (path, d), a in zip(
        jax.tree_util.tree_leaves_with_path(desired), jax.tree.leaves(actual), strict=True
    ):
        scale = max(np.abs(d).max(initial=0), 1e-3)
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a, d, rtol=0, atol=rtol * scale, err_msg=name)


def pad_classes(objective, ztxt):
    """Embeddings of classes as `prepare` returns them, with noise for padding."""
    padding = len(objective.class_texts.mask) - len(ztxt)
    return jnp.concatenate([ztxt, draw_unit(9, padding, DIM)]) if padding else ztxt


def compute_by_hand(scale, zimg, ztxt, classes, batch, direction):
    """Eq. 6 and the direction it does not have, one example at a time."""
    label, mask = np.asarray(batch["label"]), np.asarray(batch["mask"])
    ztxt = ztxt.reshape(len(label), -1, DIM)
    exists = np.asarray(batch["text_mask"]).any(-1).reshape(len(label), -1)
    captions = [(i, j) for i, j in np.argwhere(exists) if mask[i] and label[i] < 0]
    texts = jnp.concatenate([classes, *(ztxt[i, j][None] for i, j in captions)])
    owner = [*(("class", c) for c in range(len(classes))), *(("pair", i) for i, _ in captions)]
    used = [i for i in range(len(label)) if mask[i] and label[i] < len(classes)]
    own = [("class", label[i]) if label[i] >= 0 else ("pair", i) for i in used]
    logits = scale * zimg[np.array(used)] @ texts.T
    positive = np.array([[a == b for b in owner] for a in own])
    fraction = positive / positive.sum(1, keepdims=True)
    total = -(fraction * jax.nn.log_softmax(logits, axis=1)).sum(1).mean()
    asking = {"both": ("pair",), "image_to_text": (), "all": ("pair", "class")}[direction]
    for name in {o for o in own if o[0] in asking}:
        columns = [j for j, o in enumerate(owner) if o == name]
        target = positive[:, columns] / positive[:, columns].sum(0)
        each = -(target * jax.nn.log_softmax(logits[:, columns], axis=0)).sum(0)
        total += each.mean() / len(used)
    return total, None


LABELS = np.array([3, -1, -1, 3, 0, 12, -1, -1, 7, -1, 1, -1, -1, 5, -1, 9])


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("direction", ["both", "image_to_text", "all"])
def test_equals_the_formula_one_example_at_a_time(devices, direction):
    objective = make_iclip(devices, direction=direction)
    outputs, batch = make_rows(LABELS, masked=2)
    classes = draw_unit(3, 13, DIM)

    def ours(params, outputs, classes):
        return objective.loss(params, outputs, pad_classes(objective, classes), batch)

    def by_hand(params, outputs, classes):
        towers = outputs["zimg"], outputs["ztxt"], classes
        return compute_by_hand(jnp.exp(params["log_scale"]), *towers, batch, direction)

    arrays = PARAMS, outputs, classes
    assert_close(differentiate(ours, *arrays), differentiate(by_hand, *arrays))


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("image_to_text", np.log(5) / 2),
        ("both", np.log(5) / 2 + np.log(1.5) / 2),
        ("all", np.log(5) / 2 + np.log(1.5)),
    ],
)
def test_a_mixed_batch_by_hand(direction, expected):
    """Eq. 6 as printed is `image_to_text`; what texts ask is added to it.

    The scale is log 2, so that a cosine of 1 counts 2 and one of 0 counts 1. The first image is of
    the first class and looks like its text: 2 of 2 + 1 + 1. The second is like its caption and the
    text of the second class: 2 of 1 + 2 + 2. So eq. 6 is (log 4/2 + log 5/2) / 2. The caption finds
    its image with 2 of 3, which weighs as one of two images, and so does the first class.
    """
    objective = make_iclip(classes=2, direction=direction)
    right, up = np.eye(2, dtype=np.float32)
    classes = jnp.asarray(np.stack([right, up]))
    outputs = {"zimg": classes, "ztxt": jnp.asarray(np.stack([right, up]))}  # of a label: unused
    batch = {
        "label": jnp.array([0, -1]), "mask": jnp.ones(2, bool), "text_mask": jnp.ones((2, 1), bool),
    }  # fmt: skip
    params = {"log_scale": jnp.log(jnp.log(jnp.float32(2)))}
    loss, metrics = objective.loss(params, outputs, classes, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(metrics["image_to_text_loss"], np.log(5) / 2, rtol=1e-6)


@pytest.mark.parametrize("devices", DEVICES)
def test_over_the_classes_of_the_batch_it_is_unicl_from_image_to_text(devices):
    label = np.where(LABELS < 0, -1, np.cumsum(LABELS >= 0) - 1)[::-1].copy()
    classes = int(label.max()) + 1  # each once in the batch
    objective = make_iclip(devices, classes, direction="image_to_text")
    unicl = Unicl(objective.model, objective.mesh, temperature=0.2)
    outputs, batch = make_rows(label)
    order = jnp.asarray([int(np.flatnonzero(label == c)[0]) for c in range(classes)])

    def ours(params, outputs):
        prepared = pad_classes(objective, outputs["ztxt"][order])
        return objective.loss(params, outputs, prepared, batch)

    def theirs(params, outputs):
        labels = distinguish_pairs(batch["label"])
        return unicl.contrast(unicl.scale(params), outputs, batch, labels)

    arrays = PARAMS, outputs
    assert_close(differentiate(ours, *arrays), differentiate(theirs, *arrays))


@pytest.mark.parametrize("devices", DEVICES)
def test_labels_alone_are_cross_entropy_with_class_texts_as_weights(devices):
    objective = make_iclip(devices)
    outputs, batch = make_rows(np.arange(SIZE) % 13)

    def ours(params, outputs, classes):
        return objective.loss(params, outputs, pad_classes(objective, classes), batch)

    def cross_entropy(params, outputs, classes):
        logits = jnp.exp(params["log_scale"]) * outputs["zimg"] @ classes.T
        each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return each.mean() + 0 * outputs["ztxt"].sum(), None

    arrays = PARAMS, outputs, draw_unit(3, 13, DIM)
    assert_close(differentiate(ours, *arrays), differentiate(cross_entropy, *arrays))


@pytest.mark.slow_repeats
@pytest.mark.parametrize("texts", [None, 3])
@pytest.mark.parametrize("devices", DEVICES)
def test_captions_alone_are_the_sum_of_align(devices, texts):
    objective = make_iclip(devices, 5)
    align = Align(objective.model, objective.mesh, label_smoothing=0.0)
    outputs, batch = make_rows(np.full(SIZE, -1), texts, masked=3)
    # All have one coordinate, and class texts point away from it, as if there were none.
    ahead = lambda z: jnp.concatenate([jnp.ones((*z.shape[:-1], 1)), z], -1)  # noqa: E731
    outputs["zimg"] = ahead(outputs["zimg"])
    outputs["ztxt"] = ahead(outputs["ztxt"])
    away = jnp.zeros((len(objective.class_texts.mask), DIM + 1)).at[:, 0].set(-1e3)

    def ours(params, outputs):
        return objective.loss(params, outputs, away, batch)

    def theirs(params, outputs):
        return align.loss({"temperature": jnp.exp(-params["log_scale"])}, outputs, None, batch)

    arrays = PARAMS, outputs
    assert_close(differentiate(ours, *arrays), differentiate(theirs, *arrays))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 5, 8, 13])
def test_padding_and_chunks_of_classes_change_nothing(classes):
    """From the text tower's parameters to the loss, against one device and one chunk."""
    label = np.where(LABELS < 0, -1, LABELS % classes)
    outputs, batch = make_rows(label)

    def run(devices, chunk):
        objective = make_iclip(devices, classes, chunk=chunk, direction="all")
        params = _make_params(objective)[0]

        def loss(params, outputs):
            prepared = objective.prepare(params, batch, jax.random.PRNGKey(0))
            return objective.loss(params, outputs, prepared, batch)

        return differentiate(loss, params, outputs)

    one = run(1, 100)
    for devices, chunk in ((8, 1), (1, 2)):
        assert_close(run(devices, chunk), one, 5e-5)
    assert any(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(one[1][0]["model"]["text"]))


@functools.cache
def _make_variables():
    model = tiny.make_model(group_size=2)
    arrays = [jnp.asarray(tiny.make_batch(1)[k]) for k in ("image", "text", "text_mask")]
    variables = nn.meta.unbox(dict(model.init(jax.random.PRNGKey(0), *arrays)))
    return variables.pop("params"), variables


def _make_params(objective):
    params, model_state = _make_variables()
    return {"model": params, **PARAMS}, model_state


def make_batch(label, mesh, **options):
    batch = tiny.make_batch(len(label), **options) | {"label": label.astype(np.int32)}
    return place_batch(batch, mesh)


def run_whole(devices, microbatches=1, classes=13, label=LABELS, **options):
    """Loss, gradients of everything, and metrics of a step."""
    objective = make_iclip(devices, classes, **options)
    batch = make_batch(label, objective.mesh, masked=1)
    arguments = objective, *_make_params(objective), batch, jax.random.PRNGKey(0), objective.mesh

    def run():
        if microbatches == 1:
            return full_gradients(*arguments)
        return accumulated_gradients(*arguments, microbatches)

    grads, _, loss, metrics, _ = jax.jit(run)()
    return loss, grads, metrics


@functools.cache
def run_one_device():
    return run_whole(1, chunk=100)


@pytest.mark.slow
@pytest.mark.parametrize("devices, microbatches, chunk", [(8, 1, 1), (2, 4, 3)])
def test_devices_and_microbatches_change_nothing(devices, microbatches, chunk):
    loss, grads, metrics = run_one_device()
    many = run_whole(devices, microbatches, chunk=chunk)
    np.testing.assert_allclose(many[0], loss, rtol=1e-5)
    assert_close(many[1], grads, 1e-4)
    assert_close(many[2], metrics)
    for part in (grads["model"]["image"], grads["model"]["text"], grads["log_scale"]):
        assert optax.global_norm(part) > 1e-3


@pytest.mark.slow
def test_order_of_classes_does_not_matter():
    order = np.random.default_rng(0).permutation(13)
    classes = make_classes(13)
    permuted = ClassList.from_names([classes.names[c] for c in order])
    label = np.where(LABELS < 0, -1, np.argsort(order)[LABELS])
    loss, grads, _ = run_whole(1, chunk=5, classes=permuted, label=label)
    np.testing.assert_allclose(loss, run_one_device()[0], rtol=1e-5)
    assert_close(grads, run_one_device()[1], 1e-4)


@pytest.mark.slow
def test_a_label_beyond_the_classes_is_as_if_masked():
    outside = np.where(LABELS == 3, 13, LABELS)
    objective = make_iclip()
    outputs, batch = make_rows(outside)
    hidden = batch | {"mask": batch["mask"] & (batch["label"] != 13)}
    arrays = PARAMS, outputs, draw_unit(3, 13, DIM)

    def run(batch):
        loss = lambda p, o, c: objective.loss(p, o, pad_classes(objective, c), batch)  # noqa: E731
        return differentiate(loss, *arrays), jax.jit(loss)(*arrays)[1]

    value, metrics = run(batch)
    assert_close(value, run(hidden)[0])
    assert metrics["labels_outside"] == 2 and run(hidden)[1]["labels_outside"] == 0
    assert not value[1][1]["zimg"][outside == 13].any()


@pytest.mark.slow
def test_descriptions_tell_equal_names_apart_and_equal_texts_stay_two_classes():
    names, blank = ("w1", "w1", "w2"), ("", "", "")
    classes = ClassList(names, ("w3", "w4", ""), blank)
    objective = make_iclip(classes=classes, template="a {}, {description}")
    params, model_state = _make_params(objective)
    batch = make_batch(np.array([0, 1]), objective.mesh)
    described = jax.jit(objective.classify)(params, model_state, batch)
    assert (jnp.abs(described[:, 0] - described[:, 1]) > 1e-4).all()

    objective = make_iclip(classes=classes)
    same = jax.jit(objective.classify)(params, model_state, batch)
    np.testing.assert_allclose(same[:, 0], same[:, 1], rtol=1e-6)
    # Two classes of one text share what probability they have.
    objective = make_iclip(classes=ClassList.from_names(["w1", "w1"]))
    prepared = objective.prepare(params, batch, jax.random.PRNGKey(0))
    outputs = {"zimg": prepared[:2], "ztxt": prepared[:2]}
    loss, _ = jax.jit(objective.loss)(params, outputs, prepared, batch)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("devices", DEVICES)
def test_classify_compares_images_with_class_texts(devices):
    objective = make_iclip(devices, chunk=1)
    params, model_state = _make_params(objective)
    batch = make_batch(LABELS, objective.mesh)
    logits = jax.jit(objective.classify)(params, model_state, batch)
    text, mask = TOKENIZER([f"a {name}" for name in make_classes(13).names])
    texts = {"text": jnp.asarray(text), "text_mask": jnp.asarray(mask)}
    zimg = objective.embed_image(params, model_state, batch)
    ztxt = objective.embed_text(params, model_state, texts)
    np.testing.assert_allclose(logits, 6 * zimg @ ztxt.T, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"direction": "none"}, "direction = 'none' is unknown; known: both, image_to_text, all"),
        ({"chunk": 0}, "chunk = 0 must be at least 1"),
        ({"template": "a photo"}, "needs one {}"),
        ({"temperature": 0.001}, "min_temperature"),
    ],
)
def test_values_out_of_range_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_iclip(**wrong)
