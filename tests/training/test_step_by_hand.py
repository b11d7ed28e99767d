"""The train step on an objective of one number, against what a reader computes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import TwoTowers
from big_align.training.state import TrainState
from big_align.training.step import make_train_step
from tests import tiny


class Line(ComposedObjective):
    """Loss: the mean over rows of x times p, plus p times what `prepare` makes of p."""

    def __init__(self):
        super().__init__(TwoTowers(tiny.make_model()), tiny.make_mesh(1))

    def prepare(self, params, batch, rng):
        return 3 * params["p"]

    def encode(self, params, model_state, batch, rng):
        return {"y": batch["x"] * params["p"]}, {"mean": batch["x"].mean()}

    def loss(self, params, outputs, prepared, batch):
        return outputs["y"].mean() + params["p"] * prepared, {"drawn": batch["drawn"][0]}

    def augment(self, batch, rng, step):
        return {**batch, "drawn": jax.random.uniform(rng, batch["x"].shape)}

    def project(self, params):
        return {"p": jnp.minimum(params["p"], 1.8)}


def take_steps(count, microbatches=1):
    """p = 2 and x = 1, 2, 3, 6: the mean is 3, the gradient 3 + 2 * 3 * p = 15."""
    mesh, optimizer = tiny.make_mesh(1), optax.sgd(0.01)
    params = {"p": jnp.float32(2)}
    state = TrainState(
        step=jnp.int32(0), params=params, model_state={"mean": jnp.float32(0)},
        opt_state=optimizer.init(params), rng=jax.random.PRNGKey(0),
    )  # fmt: skip
    step = jax.jit(make_train_step(Line(), optimizer, mesh, microbatches=microbatches))
    seen = []
    for _ in range(count):
        state, metrics = step(state, {"x": jnp.float32([1, 2, 3, 6])})
        seen.append({name: float(value) for name, value in metrics.items()})
    return state, seen


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_loss_update_norms_and_statistics(microbatches):
    state, (metrics,) = take_steps(1, microbatches)
    np.testing.assert_allclose(metrics["loss"], 3 * 2 + 2 * 3 * 2)
    np.testing.assert_allclose(metrics["gradient_norm"], 15)
    np.testing.assert_allclose(metrics["update_norm"], 0.15, rtol=1e-6)
    np.testing.assert_allclose(state.params["p"], 1.8, rtol=1e-6)  # 2 - 0.15, projected
    np.testing.assert_allclose(metrics["parameter_norm"], 1.8, rtol=1e-6)
    np.testing.assert_allclose(state.model_state["mean"], 3)
    assert int(state.step) == 1


def test_every_step_draws_anew_and_the_key_of_the_run_stays():
    state, seen = take_steps(3)
    assert int(state.step) == 3 and len({each["drawn"] for each in seen}) == 3
    np.testing.assert_array_equal(state.rng, jax.random.PRNGKey(0))
    again = take_steps(2)[1]
    assert [each["drawn"] for each in again] == [each["drawn"] for each in seen[:2]]
