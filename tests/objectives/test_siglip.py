"""SigLIP: every pair of an image and a text is a decision, whose positives come from labels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.objectives.siglip import Siglip
from big_align.parallel.batches import place_batch
from big_align.training.state import describe_state
from big_align.training.step import accumulated_gradients, compile_step, full_gradients
from big_align.training.step import make_train_step as make_step
from tests import tiny
from tests.device_counts import DEVICES
from tests.objectives.test_unicl import assert_close, draw_batch, draw_outputs

PARAMS = {"log_scale": jnp.float32(1.5), "bias": jnp.float32(-2.0)}


def make_objective(devices=1, **options):
    return Siglip(tiny.make_model(group_size=2), tiny.make_mesh(devices), **options)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("texts", [(), (3,)], ids=str)
def test_loss_is_the_sum_over_pairs_by_hand(devices, texts):
    outputs, batch = draw_outputs(texts=texts), draw_batch(masked=3, texts=texts)
    loss, metrics = jax.jit(make_objective(devices).loss)(PARAMS, outputs, None, batch)

    zimg = np.float64(outputs["zimg"])
    ztxt = np.float64(outputs["ztxt"]).reshape(16, -1, 8)
    label, there = np.asarray(batch["label"]), np.ones((16, 1), bool)
    if texts:
        there = np.asarray(batch["text_mask"])[..., 0]
    total = 0.0
    for i in range(13):
        for j in range(13):
            for k in np.flatnonzero(there[j]):
                logit = np.exp(1.5) * zimg[i] @ ztxt[j, k] - 2
                positive = i == j or (label[i] == label[j] >= 0)
                total += np.log1p(np.exp(-logit if positive else logit))
    np.testing.assert_allclose(loss, total / 13, rtol=1e-5)
    np.testing.assert_allclose(metrics["temperature"], np.exp(-1.5), rtol=1e-6)


def test_permuting_the_rows_changes_nothing():
    outputs, batch = draw_outputs(), draw_batch(masked=3)
    order = np.random.default_rng(3).permutation(16)
    loss = make_objective().loss
    moved = jax.tree.map(lambda x: x[order], (outputs, batch))
    expected = loss(PARAMS, outputs, None, batch)[0]
    np.testing.assert_allclose(loss(PARAMS, moved[0], None, moved[1])[0], expected, rtol=1e-6)


@pytest.mark.slow
def test_it_starts_at_log_10_and_minus_10():
    objective = make_objective()
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(2))
    params, _ = jax.jit(objective.init)(jax.random.PRNGKey(0), batch)
    np.testing.assert_allclose(params["log_scale"], np.log(10), rtol=1e-6)
    assert params["bias"] == -10
    bounded = objective.project(params | {"log_scale": jnp.float32(99)})
    np.testing.assert_allclose(bounded["log_scale"], np.log(1000), rtol=1e-6)


def test_settings_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="bias = nan must be a finite number"):
        make_objective(bias=float("nan"))
    with pytest.raises(ValueError, match="temperature = 0.0001 must be at least min_temperature"):
        make_objective(temperature=1e-4)


@pytest.mark.slow
def test_devices_and_microbatches_change_nothing():
    def run(devices, microbatches=1):
        objective = make_objective(devices)
        batch = jax.tree.map(np.asarray, dict(tiny.make_batch(16, masked=1)))
        arrays = jax.tree.map(jnp.asarray, tiny.make_batch(2))
        params, state = jax.jit(objective.init)(jax.random.PRNGKey(0), arrays)
        params = nn.meta.unbox(params) | PARAMS
        placed = place_batch(batch, objective.mesh)
        arguments = objective, params, state, placed, jax.random.PRNGKey(1), objective.mesh
        if microbatches == 1:
            return jax.jit(lambda: full_gradients(*arguments))()
        return jax.jit(lambda: accumulated_gradients(*arguments, microbatches))()

    expected = run(1)
    for other in (run(8), run(4, 2)):
        for part in (0, 2):  # gradients and loss
            assert_close(other[part], expected[part])


@pytest.mark.slow
def test_a_tiny_run_overfits():
    objective, optimizer = make_objective(bias=-3.0), optax.adam(3e-3)
    mesh, batch = objective.mesh, tiny.make_batch(16)
    _, create = describe_state(objective, optimizer, tiny.make_batch(1), mesh)
    state, placed = create(), place_batch(jax.tree.map(np.asarray, dict(batch)), mesh)
    step = compile_step(make_step(objective, optimizer, mesh), state, placed, mesh)
    losses = []
    for _ in range(60):
        state, metrics = step(state, placed)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.2 * losses[0]
