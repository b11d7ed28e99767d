"""Recognition of tags: published numbers, hand-made cases, and what must not change them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from big_align.losses.tag_recognition import (
    LOSSES,
    binary_cross_entropy,
    find_tags,
    focal_cross_entropy,
    mark_tags,
    measure_found,
    tag_recognition_loss,
)
from tests import tiny

ALL = jnp.ones(16, bool)


def draw(rows=16, tags=11, seed=0):
    rng = np.random.default_rng(seed)
    logits = jnp.float32(2 * rng.normal(size=(rows, tags)))
    given = jnp.asarray(rng.random((rows, tags)) < 0.2)
    return logits, given, jnp.float32(rng.uniform(0.5, 2, tags))


def compute(name, logits, given, weights, mask=ALL, correcting=True):
    found = find_tags(logits, given, mask, jnp.asarray(correcting))
    return tag_recognition_loss(name, logits, given, found, mask, weights)


def test_the_authors_splc_to_the_published_numbers(reference_dir):
    golden = np.load(reference_dir / "ml_decoder" / "io.npz")
    logits, given = jnp.asarray(golden["splc_logits"]), jnp.asarray(golden["splc_targets"] == 1)
    mask = jnp.ones(len(logits), bool)
    for epoch in (0, 1):
        found = find_tags(logits, given, mask, jnp.array(epoch >= 1), 0.6)
        assert found.any() == (epoch == 1)
        value = focal_cross_entropy(logits, given, found, mask)
        summed = value * len(logits)
        np.testing.assert_allclose(summed, golden[f"splc_epoch{epoch}_sum"], rtol=1e-5)


def test_by_hand():
    """Probabilities 0.8, 0.7, 0.4 and 0.9, of which the first is given: 0.7 and 0.9 are found."""
    probability = np.array([0.8, 0.7, 0.4, 0.9])
    logits = jnp.float32(np.log(probability / (1 - probability)))[None]
    given = jnp.array([[True, False, False, False]])
    mask, weights = jnp.ones(1, bool), jnp.array([1.0, 2.0, 3.0, 4.0])
    found = find_tags(logits, given, mask, jnp.array(True), 0.6)
    np.testing.assert_array_equal(found, [[False, True, False, True]])
    expected = {
        "bce": -np.log([0.8, 0.3, 0.6, 0.1]).sum(),
        "weighted_bce": -np.log([0.8, 0.3, 0.6, 0.1]) @ [1, 2, 3, 4],
        "splc": -np.log([0.8, 0.7, 0.6, 0.9]) @ [1, 2, 3, 4],
    }
    q = np.array([1 / (1 + np.exp(1) * 0.25), 0.7, 0.6, 0.9])  # the first less the margin
    expected["splc_focal"] = -((1 - q) ** 2 * np.log(q)).sum()
    for name in LOSSES:
        value = tag_recognition_loss(name, logits, given, found, mask, weights)
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_without_weights_it_is_optax_summed_over_tags():
    logits, given, _ = draw()
    expected = optax.sigmoid_binary_cross_entropy(logits, given).sum(axis=1).mean()
    np.testing.assert_allclose(binary_cross_entropy(logits, given, ALL), expected, rtol=1e-6)


def test_before_the_change_splc_is_weighted_cross_entropy():
    before = {name: compute(name, *draw(), correcting=False) for name in LOSSES}
    assert before["splc"] == before["weighted_bce"]
    assert compute("splc", *draw()) < before["splc"]
    assert compute("splc_focal", *draw()) < before["splc_focal"]


def test_finding_can_differ_from_row_to_row():
    logits, given, _ = draw()
    correcting = jnp.arange(16) % 2 == 0
    found = find_tags(logits, given, ALL, correcting)
    np.testing.assert_array_equal(found[1::2], False)
    np.testing.assert_array_equal(found[::2], find_tags(logits, given, ALL, jnp.array(True))[::2])
    assert found.any() and not (found & given).any()


@pytest.mark.parametrize("name", LOSSES)
def test_masked_rows_equal_none(name):
    logits, given, weights = draw()
    mask = jnp.asarray(np.random.default_rng(1).random(16) < 0.6)
    spoiled = jnp.where(mask[:, None], logits, jnp.nan)
    loss = jax.value_and_grad(lambda x: compute(name, x, given, weights, mask))
    sliced = jax.value_and_grad(lambda x: compute(name, x, given[mask], weights, ALL[mask]))
    (value, grad), (expected, expected_grad) = loss(spoiled), sliced(logits[mask])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grad[mask], expected_grad, rtol=1e-5, atol=1e-8)
    assert not np.any(grad[~mask])
    value, grad = jax.value_and_grad(lambda x: compute(name, x, given, weights, ~ALL))(spoiled)
    assert value == 0 and not np.any(grad)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_that_of_finite_differences(name):
    """No logit is near the threshold, through which there is none."""
    logits, given, weights = draw(3, 5)
    assert find_tags(logits, given, ALL[:3], ALL[0]).any()
    assert np.abs(jax.nn.sigmoid(logits) - 0.6).min() > 0.01
    step = 1e-2

    def loss(x):
        return compute(name, x, given, weights, ALL[:3])

    nudges = step * jnp.eye(15).reshape(15, 3, 5)
    slopes = [jax.vmap(loss)(logits + sign * nudges) for sign in (1, -1)]
    slopes = ((slopes[0] - slopes[1]) / (2 * step)).reshape(3, 5)
    np.testing.assert_allclose(jax.grad(loss)(logits), slopes, atol=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_large_logits_are_finite(name):
    logits = jnp.float32([[1e4, -1e4, 1e4, -1e4], [1e30, -1e30, 0, 88]])
    given = jnp.array([[True, True, False, False]] * 2)
    for correcting in (False, True):
        value, grad = jax.value_and_grad(
            lambda x, on=correcting: compute(name, x, given, jnp.ones(4), ALL[:2], on)
        )(logits)
        assert np.isfinite(value) and np.isfinite(grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16_logits_are_taken_to_float32_first(name):
    logits, given, weights = draw()
    half = logits.astype(jnp.bfloat16)
    value = compute(name, half, given, weights)
    assert value.dtype == jnp.float32
    assert value == compute(name, half.astype(jnp.float32), given, weights)


@pytest.mark.parametrize("name", LOSSES)
def test_eight_devices_equal_one_and_order_does_not_matter(name):
    logits, given, weights = draw()
    mask = jnp.arange(16) < 13

    def run(logits, given, mask):
        return jax.value_and_grad(lambda x: compute(name, x, given, weights, mask))(logits)

    value, grad = jax.jit(run)(logits, given, mask)
    mesh = tiny.make_mesh(8)
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    split = jax.jit(run)(*jax.device_put((logits, given, mask), rows))
    order = np.random.default_rng(2).permutation(16)
    shuffled = jax.jit(run)(logits[order], given[order], mask[order])
    for other, expected in ((split, grad), (shuffled, grad[order])):
        np.testing.assert_allclose(other[0], value, rtol=1e-6)
        np.testing.assert_allclose(other[1], expected, rtol=1e-5, atol=1e-8)


def test_tags_are_marked_whatever_stands_for_none():
    marked = mark_tags(jnp.array([[2, 0, -1], [-1, -1, -1], [4, 5, 1]]), 5)
    np.testing.assert_array_equal(
        marked, np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 1]], bool)
    )


def test_precision_and_recall_are_of_the_whole_batch():
    """Row 1 finds one of two missed tags and a wrong one, row 2 a right one; row 3 is masked."""
    given = mark_tags(jnp.array([[0, -1], [1, -1], [0, 1]]), 6)
    true = mark_tags(jnp.array([[0, 2, 3], [1, 4, -1], [0, 1, 2]]), 6)
    found = mark_tags(jnp.array([[2, 5], [4, -1], [3, 4]]), 6)
    metrics = measure_found(given, found, jnp.array([True, True, False]), true)
    expected = {"tags_found": 3 / 2, "found_precision": 2 / 3, "found_recall": 2 / 3}
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-6)
    nothing = measure_found(given, found & False, jnp.zeros(3, bool), true)
    assert all(value == 0 for value in nothing.values())


def test_an_unknown_loss_is_named():
    logits, given, weights = draw()
    with pytest.raises(ValueError, match="name = 'SPLC' is unknown; known: bce, weighted_bce, spl"):
        compute("SPLC", logits, given, weights, ALL)
