"""The train step on an objective of one number, against what a reader computes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.objectives.parts.composed import ComposedObjective
from big_align.objectives.parts.encoders import TwoTowers
from big_align.training.optimizers import make_row_optimizer
from big_align.training.row_tables import Drawn
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


class NoisyLine(Line):
    """Every row of x is multiplied by noise, as by dropout."""

    def encode(self, params, model_state, batch, rng):
        noise = jax.random.uniform(rng, batch["x"].shape)
        outputs = {"y": noise * batch["x"] * params["p"], "noise": noise}
        return outputs, {"mean": batch["x"].mean()}

    def loss(self, params, outputs, prepared, batch):
        loss = outputs["y"].mean() + params["p"] * prepared
        return loss, {"slope": (outputs["noise"] * batch["x"]).mean() + 6 * params["p"]}


class NumberedLine(Line):
    """Every row counts times its number in the batch."""

    def loss(self, params, outputs, prepared, batch):
        return (jnp.arange(len(outputs["y"])) * outputs["y"]).mean(), {}


class LineAndTable(Line):
    """A step adds one row of a table of zeros to the loss."""

    table_sizes = {"rows": 1000}

    def draw(self, tables, batch, rng):
        ids = jax.random.randint(rng, (1,), 0, self.table_sizes["rows"])
        rows = tables["rows"].values[ids]
        return {"rows": Drawn(ids, jnp.zeros(1, int), rows, jnp.ones(1, bool))}

    def loss(self, params, outputs, prepared, batch):
        drawn = params["drawn"]["rows"]
        loss, _ = super().loss(params, outputs, prepared, batch)
        return loss + drawn.rows.sum(), {"row": drawn.ids[0]}


def take_steps(count, microbatches=1, objective=Line, devices=1):
    """p = 2 and x = 1, 2, 3, 6: the mean is 3, the gradient 3 + 2 * 3 * p = 15.

    Rows of a table move at the rates 1, 2, 3, ...
    """
    mesh, made, optimizer = tiny.make_mesh(devices), objective(), optax.sgd(0.01)
    by_row = make_row_optimizer("sgd", momentum=0.0)
    tables = {k: by_row.init(jnp.zeros((size, 1))) for k, size in made.table_sizes.items()}
    params = {"p": jnp.float32(2)}
    state = TrainState(
        step=jnp.int32(0), params=params, model_state={"mean": jnp.float32(0)},
        opt_state=optimizer.init(params), rng=jax.random.PRNGKey(0),
        tables=tables,
    )  # fmt: skip
    options = {"row_optimizer": by_row, "learning_rate": lambda step: step + 1.0}
    step = jax.jit(make_train_step(made, optimizer, mesh, microbatches=microbatches, **options))
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


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (2, 2)])
def test_every_row_keeps_its_place_in_the_batch(devices, microbatches):
    _, (metrics,) = take_steps(1, microbatches, NumberedLine, devices)
    slope = (0 * 1 + 1 * 2 + 2 * 3 + 3 * 6) / 4
    np.testing.assert_allclose(metrics["loss"], 2 * slope)
    np.testing.assert_allclose(metrics["gradient_norm"], slope)


def test_every_step_draws_anew_and_the_key_of_the_run_stays():
    state, seen = take_steps(3)
    assert int(state.step) == 3 and len({each["drawn"] for each in seen}) == 3
    np.testing.assert_array_equal(state.rng, jax.random.PRNGKey(0))
    again = take_steps(2)[1]
    assert [each["drawn"] for each in again] == [each["drawn"] for each in seen[:2]]


@pytest.mark.slow_repeats
@pytest.mark.parametrize("microbatches", [2, 1, 4])
def test_both_passes_of_a_step_draw_the_same_and_every_step_anew(microbatches):
    _, seen = take_steps(2, microbatches, NoisyLine)
    for metrics in seen:
        np.testing.assert_allclose(metrics["gradient_norm"], metrics["slope"], rtol=1e-5)
    noise = [metrics["slope"] - 6 * p for metrics, p in zip(seen, (2, 1.8), strict=True)]
    assert abs(noise[0] - noise[1]) > 1e-3


def test_every_step_draws_rows_anew_and_moves_them_at_its_rate():
    state, seen = take_steps(3, objective=LineAndTable)
    rows = [int(metrics["row"]) for metrics in seen]
    assert len(set(rows)) == 3
    expected = np.zeros((1000, 1))
    expected[rows, 0] = -1, -2, -3
    np.testing.assert_array_equal(state.tables["rows"].values, expected)


@pytest.mark.parametrize(("steps", "p", "mean"), [(1, 1.82, 2.7), (2, 1.6857, 2.955)])
def test_the_average_is_of_what_the_step_has_made(steps, p, mean):
    """Its decay is 0.1 at first: 0.1 * 2 + 0.9 * 1.8; then 0.15: 0.15 * 1.82 + 0.85 * 1.662."""
    optimizer, params, statistics = optax.sgd(0.01), {"p": jnp.float32(2)}, {"mean": jnp.float32(0)}
    state = TrainState(
        step=jnp.int32(0), params=params, model_state=statistics,
        opt_state=optimizer.init(params), rng=jax.random.PRNGKey(0), average=(params, statistics),
    )  # fmt: skip
    step = jax.jit(make_train_step(Line(), optimizer, tiny.make_mesh(1), average_decay=0.15))
    for _ in range(steps):
        state, _ = step(state, {"x": jnp.float32([1, 2, 3, 6])})
    np.testing.assert_allclose(state.average[0]["p"], p, rtol=1e-6)
    np.testing.assert_allclose(state.average[1]["mean"], mean, rtol=1e-6)
