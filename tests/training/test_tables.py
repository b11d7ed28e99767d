"""Tables in the train step: devices, micro-batches, resuming, and another number of devices."""

import contextlib

import jax
import numpy as np
import optax
import pytest

from big_align.errors import CheckpointMismatch
from big_align.objectives.mlcd import Mlcd
from big_align.parallel.batches import place_batch
from big_align.parallel.meshes import batch_sharding
from big_align.training.optimizers import make_optimizer, make_row_optimizer
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step
from tests import tiny

K, LABELS = 29, 3


def make_objective(devices=1, fsdp=1, **options):
    mesh = tiny.make_mesh(devices, fsdp)
    options = {"labels_per_image": LABELS, "sampling_ratio": 1.0, "scale": 8.0} | options
    return Mlcd(tiny.make_model(group_size=2), mesh, K, **options)


def make_batch(size=16, seed=0, masked=2):
    rng = np.random.default_rng(seed)
    clusters = rng.integers(-1, K, (size, LABELS + 1)).astype(np.int32)
    return tiny.make_batch(size, seed, masked) | {"clusters": clusters}


def make_optimizers(name):
    """For parameters and for rows, and their learning rate."""
    schedule = optax.linear_schedule(1e-2, 5e-3, 4)
    optimizer = make_optimizer(schedule, name, weight_decay=0.1)
    return optimizer, make_row_optimizer(name, weight_decay=0.1), schedule


class Run:
    """A state and the compiled step that moves it."""

    def __init__(self, objective, microbatches=1, name="adamw"):
        self.mesh = objective.mesh
        optimizer, rows, schedule = make_optimizers(name)
        self.described, create = describe_state(
            objective, optimizer, make_batch(1), self.mesh, seed=1, row_optimizer=rows
        )
        self.state = create()
        step = make_train_step(
            objective,
            optimizer,
            self.mesh,
            microbatches=microbatches,
            row_optimizer=rows,
            learning_rate=schedule,
        )
        self.compiled = compile_step(step, self.state, self.place(0), self.mesh)
        self.metrics = []

    def place(self, seed):
        return place_batch(make_batch(seed=seed), self.mesh)

    def advance(self, seeds):
        for seed in seeds:
            self.state, metrics = self.compiled(self.state, self.place(seed))
            self.metrics.append({k: float(v) for k, v in metrics.items()})
        return self

    @property
    def table(self):
        return without_padding(self.state.tables["centers"])


def without_padding(table):
    return jax.tree.map(lambda x: np.array(x)[:K], table)


def assert_close(left, right, tolerance=2e-4):
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(), 1e-2))


@pytest.mark.slow
@pytest.mark.parametrize("devices, fsdp, microbatches", [(8, 1, 1), (8, 4, 1), (4, 1, 2)])
def test_devices_and_microbatches_change_nothing(devices, fsdp, microbatches):
    one = Run(make_objective(), name="sgd").advance(range(3))
    many = Run(make_objective(devices, fsdp), microbatches, "sgd").advance(range(3))
    for a, b in zip(many.metrics, one.metrics, strict=True):
        for name in ("loss", "positive_cosine", "negative_cosine", "centers_drawn"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)
    assert_close(many.state.params, one.state.params)
    assert_close(many.table, one.table)
    values = many.state.tables["centers"].values
    assert values.addressable_shards[0].data.size * devices == values.size
    assert all(x["centers_drawn"] == K for x in many.metrics)


@pytest.mark.slow
def test_rows_that_were_never_drawn_are_as_they_were():
    run = Run(make_objective(4, sampling_ratio=0.1, labels_per_image=1))
    first = run.table
    run.advance([0])
    away = optax.tree_utils.tree_get(run.table.state, "count") == 0
    assert away.any() and not away.all()
    np.testing.assert_array_equal(run.table.values[away], first.values[away])
    assert (run.table.values[~away] != first.values[~away]).any(1).all()


@pytest.mark.slow
def test_resuming_replays_the_draws(tmp_path):
    objective = make_objective(2, sampling_ratio=0.2, labels_per_image=1)
    whole = Run(objective).advance(range(4))
    half = Run(objective).advance(range(2))
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        checkpointer.save(half.state, {})
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        half.state = checkpointer.restore(half.described, {})
    half.advance(range(2, 4))
    assert half.metrics == whole.metrics
    jax.tree.map(np.testing.assert_array_equal, half.table, whole.table)


@pytest.mark.slow
@pytest.mark.parametrize("before, after", [(8, 3), (2, 8)])
def test_a_table_is_restored_on_another_number_of_devices(tmp_path, before, after):
    saved = Run(make_objective(before)).advance([0])
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        checkpointer.save(saved.state, {})
    objective = make_objective(after)
    optimizer, rows, _ = make_optimizers("adamw")
    described, _ = describe_state(
        objective, optimizer, make_batch(1), objective.mesh, row_optimizer=rows
    )
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        table = checkpointer.restore(described, {}).tables["centers"]
    jax.tree.map(np.testing.assert_array_equal, without_padding(table), saved.table)
    assert all(len(leaf) % after == 0 for leaf in jax.tree.leaves(table))
    assert table.values.sharding == batch_sharding(objective.mesh)


@pytest.mark.slow
def test_a_checkpoint_of_another_optimizer_is_a_mismatch(tmp_path):
    run = Run(make_objective(), name="adamw")
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        checkpointer.save(run.state, {})
    described = {"tables": Run(make_objective(), name="sgd").described.tables}
    with contextlib.closing(Checkpointer(str(tmp_path))) as checkpointer:
        with pytest.raises(CheckpointMismatch, match="only in the checkpoint: tables/centers"):
            checkpointer.restore(described, {})
