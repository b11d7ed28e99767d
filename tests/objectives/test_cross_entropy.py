"""Linear and cosine classifiers on the image tower: eq. 1 and eq. 3 of iCLIP by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.models.dual_encoder import normalize
from big_align.objectives.cross_entropy import CrossEntropy
from big_align.parallel.batches import place_batch
from big_align.training.optimizers import make_optimizer
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step
from tests import tiny

CLASSES = 8


def make_objective(devices=1, fsdp=1, locked=(), **options):
    model = tiny.make_model(group_size=2).clone(text=None, locked=locked)
    return CrossEntropy(model, tiny.make_mesh(devices, fsdp), CLASSES, **options)


def make_batch(size=16, seed=0, masked=0):
    batch = tiny.make_batch(size, seed, masked)
    return batch | {"label": np.random.default_rng(seed).integers(-1, CLASSES, size, np.int32)}


def make_params(objective):
    batch = jax.tree.map(jnp.asarray, make_batch(2))
    return nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))


def run_steps(objective, batches, steps=None):
    mesh = objective.mesh
    optimizer = make_optimizer(1e-2, "adamw", weight_decay=0.1, frozen=objective.frozen)
    _, create = describe_state(objective, optimizer, batches[0], mesh, seed=1)
    first, state = create(), create()
    batches = [place_batch(batch, mesh) for batch in batches]
    step = compile_step(make_train_step(objective, optimizer, mesh), state, batches[0], mesh)
    metrics = []
    for number in range(steps or len(batches)):
        state, logged = step(state, batches[number % len(batches)])
        metrics.append({k: float(v) for k, v in logged.items()})
    return first, state, metrics


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_logits_by_hand(classifier):
    objective = make_objective(classifier=classifier, temperature=0.1)
    rng = np.random.default_rng(0)
    features, kernel = rng.normal(size=(4, 16)), rng.normal(size=(16, CLASSES))
    bias = rng.normal(size=CLASSES)
    if classifier == "linear":
        params = {"classifier": {"kernel": kernel, "bias": bias}}
        expected = features @ kernel + bias
    else:
        params = {"classifier": {"kernel": kernel}, "log_scale": np.log(10)}
        lengths = np.outer(np.linalg.norm(features, axis=1), np.linalg.norm(kernel, axis=0))
        expected = 10 * (features @ kernel) / lengths
    params = jax.tree.map(jnp.float32, params)
    logits = objective.logits(params, jnp.float32(features))
    np.testing.assert_allclose(logits, expected, rtol=1e-4)

    label, mask = jnp.array([2, -1, 7, 0]), jnp.array([True, True, True, False])
    batch = {"label": label, "mask": mask}
    outputs = {"features": jnp.float32(features)}
    loss, metrics = jax.jit(objective.loss)(params, outputs, None, batch)
    log_probs = expected - np.log(np.exp(expected).sum(1, keepdims=True))
    np.testing.assert_allclose(loss, -(log_probs[0, 2] + log_probs[2, 7]) / 2, rtol=1e-4)
    hits = [expected[0].argmax() == 2, expected[2].argmax() == 7]
    np.testing.assert_allclose(metrics["accuracy"], np.mean(hits))


def test_a_label_beyond_the_last_class_trains_nothing_and_is_counted():
    objective = make_objective()
    params = {"classifier": {"kernel": jnp.ones((16, CLASSES)), "bias": jnp.arange(8.0)}}
    features = jax.random.normal(jax.random.PRNGKey(0), (4, 16))
    batch = {"label": jnp.array([1, 8, 100, 2]), "mask": jnp.ones(4, bool)}
    differentiate = jax.value_and_grad(
        lambda x: objective.loss(params, {"features": x}, None, batch), has_aux=True
    )
    (loss, metrics), grad = jax.jit(differentiate)(features)
    inside = np.array([0, 3])
    sliced = jax.tree.map(lambda x: x[inside], batch)
    expected, _ = jax.jit(objective.loss)(params, {"features": features[inside]}, None, sliced)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert metrics["labels_outside"] == 2 and not np.any(grad[1:3])


@pytest.mark.slow
def test_the_scale_of_cosines_starts_at_its_temperature_and_is_bounded():
    objective = make_objective(classifier="cosine", temperature=0.05, min_temperature=0.02)
    params, _ = make_params(objective)
    np.testing.assert_allclose(jnp.exp(params["log_scale"]), 20, rtol=1e-5)
    bounded = objective.project(params | {"log_scale": jnp.float32(9)})
    np.testing.assert_allclose(jnp.exp(bounded["log_scale"]), 50, rtol=1e-5)
    assert "log_scale" not in make_params(make_objective())[0]


def test_there_is_no_text_side():
    objective = make_objective()
    params, model_state = make_params(objective)
    assert set(params["model"]) == {"image"}
    with pytest.raises(ValueError, match="no text side"):
        objective.embed_text(params, model_state, make_batch(2))


def test_embeddings_are_features_of_length_one_and_logits_come_from_the_features():
    objective = make_objective()
    params, model_state = make_params(objective)
    batch = jax.tree.map(jnp.asarray, make_batch(4))
    features = objective.image_features(params, model_state, batch)
    zimg = objective.embed_image(params, model_state, batch)
    np.testing.assert_allclose(zimg, normalize(features))
    logits, head = objective.classify(params, model_state, batch), params["classifier"]
    expected = features @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("classifier, fsdp", [("linear", 1), ("cosine", 4)])
def test_eight_devices_equal_one(classifier, fsdp):
    batches = [make_batch(16, seed, seed) for seed in range(2)]
    _, one, logged_one = run_steps(make_objective(classifier=classifier), batches)
    _, eight, logged = run_steps(make_objective(8, fsdp, classifier=classifier), batches)
    for a, b in zip(logged, logged_one, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(eight.params), jax.tree.leaves(one.params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    kernel = eight.params["classifier"]["kernel"]
    assert kernel.addressable_shards[0].data.size * fsdp == kernel.size


def test_a_fixed_tower_stays_bit_for_bit_while_the_classifier_learns():
    objective = make_objective(8, fsdp=4, locked=("image",))
    first, last, metrics = run_steps(objective, [make_batch(16)], 20)
    jax.tree.map(np.testing.assert_array_equal, last.params["model"], first.params["model"])
    jax.tree.map(np.testing.assert_array_equal, last.model_state, first.model_state)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2
    # Moments are those of the classifier, in pieces as it is; the tower has none.
    moments = optax.tree_utils.tree_get(last.opt_state, "mu")
    assert len(jax.tree.leaves(moments)) == 2
    kernel = moments["classifier"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
    assert make_objective().frozen == ()


@pytest.mark.slow
def test_a_fixed_tower_is_that_of_evaluation_and_gets_no_gradient():
    objective = make_objective(locked=("image",))
    params, model_state = make_params(objective)
    batch = jax.tree.map(jnp.asarray, make_batch(4))
    rng = jax.random.PRNGKey(0)

    def loss(params):
        outputs, _ = objective.encode(params, model_state, batch, rng)
        return objective.loss(params, outputs, None, batch)[0], outputs["features"]

    grads, features = jax.grad(loss, has_aux=True)(params)
    expected = objective.image_features(params, model_state, batch)
    np.testing.assert_array_equal(features, expected)
    assert not any(np.any(x) for x in jax.tree.leaves(grads["model"]))
    assert np.any(grads["classifier"]["kernel"])


@pytest.mark.parametrize(
    "wrong", [{"classifier": "dense"}, {"label_smoothing": 1.0}, {"temperature": 0.001}]
)
def test_values_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_objective(**wrong)


def test_one_class_is_no_classification():
    with pytest.raises(ValueError, match="num_classes = 1"):
        CrossEntropy(tiny.make_model(), tiny.make_mesh(), 1)
