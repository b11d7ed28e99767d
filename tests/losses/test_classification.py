"""Cross-entropy over classes: optax's on the rows that count, and nothing of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.losses.classification import measure_batch, softmax_cross_entropy

LABEL = jnp.array([3, -1, 0, 5, 2, 7, 1, 2])
MASK = jnp.array([1, 1, 1, 1, 1, 1, 0, 1], bool)
REAL = np.array([0, 2, 4, 7])  # of 5 classes; row 6 is padding


def draw_logits(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(8, 5)) * 3, jnp.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_optax_on_the_labeled_rows_alone(smoothing):
    logits = draw_logits()
    targets = optax.smooth_labels(jax.nn.one_hot(LABEL[REAL], 5), smoothing)

    def expected(logits):
        return optax.softmax_cross_entropy(logits[REAL], targets).mean()

    def ours(logits):
        return softmax_cross_entropy(logits, LABEL, MASK, smoothing)

    for actual, desired in zip(
        jax.value_and_grad(ours)(logits), jax.value_and_grad(expected)(logits), strict=True
    ):
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-7)


def test_by_hand():
    loss = softmax_cross_entropy(
        jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])),
        jnp.array([0, 2]),
        jnp.ones(2, bool),
    )
    np.testing.assert_allclose(loss, -(np.log(0.5) + np.log(0.6)) / 2, rtol=1e-6)


@pytest.mark.slow
def test_rows_that_are_not_drawn_may_be_not_finite():
    logits = draw_logits()
    spoiled = logits.at[np.array([1, 3, 5, 6])].set(jnp.nan)
    loss = jax.value_and_grad(lambda x: softmax_cross_entropy(x, LABEL, MASK))
    (clean, clean_grad), (value, grad) = loss(logits), loss(spoiled)
    assert value == clean
    np.testing.assert_array_equal(grad, clean_grad)


def test_classes_may_be_ruled_out():
    """The loss is that of the other classes alone."""
    logits, kept = draw_logits(), np.array([0, 2, 3])
    label = jnp.array([2, -1, 0, 5, 2, 7, 1, 1])  # of those
    loss = jax.value_and_grad(lambda x, y: softmax_cross_entropy(x, y, MASK))
    value, grad = loss(
        jnp.full_like(logits, -jnp.inf).at[:, kept].set(logits[:, kept]),
        jnp.array([3, -1, 0, 5, 3, 7, 1, 2]),
    )
    desired, desired_grad = loss(logits[:, kept], label)
    np.testing.assert_allclose(value, desired, rtol=1e-6)
    np.testing.assert_allclose(grad[:, kept], desired_grad, atol=1e-7)
    assert not np.any(np.delete(grad, kept, axis=1))


def test_no_rows_are_zero():
    none = jnp.full(8, -1)
    value, grad = jax.value_and_grad(lambda x: softmax_cross_entropy(x, none, MASK))(draw_logits())
    assert value == 0 and not np.any(grad)
    metrics = measure_batch(draw_logits(), none, MASK)
    assert metrics == {"accuracy": 0, "labels_outside": 0}


def test_bfloat16_logits_give_a_float32_loss():
    assert softmax_cross_entropy(draw_logits().astype("bfloat16"), LABEL, MASK).dtype == "float32"


def test_metrics_count_hits_of_labeled_rows_and_labels_beyond_the_last_class():
    logits = jax.nn.one_hot(jnp.array([3, 0, 0, 0, 2, 2, 1, 4]), 5)
    metrics = measure_batch(logits, LABEL, MASK)
    assert metrics["accuracy"] == 3 / 4 and metrics["labels_outside"] == 2
