"""Training on a part of the patches: every objective learns, however a batch is split."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.data.labels.classes import ClassList
from big_align.data.tags.tag_list import make_tag_list
from big_align.data.text.tokenizers import WordTokenizer
from big_align.models.parts.kept_patches import WAYS
from big_align.models.vit import ViT
from big_align.objectives.clip import Clip
from big_align.objectives.cross_entropy import CrossEntropy
from big_align.objectives.iclip import Iclip
from big_align.objectives.idea import Idea
from big_align.objectives.lit import Lit
from big_align.objectives.mlcd import Mlcd
from big_align.objectives.multitask import MultiTask
from big_align.objectives.siglip import Siglip
from big_align.objectives.supcon import SupCon
from big_align.objectives.unicl import Unicl
from big_align.parallel.batches import place_batch
from big_align.planning.collectives import list_collectives
from big_align.planning.hlo import parse_program
from big_align.training.optimizers import make_optimizer, make_row_optimizer
from big_align.training.state import describe_state
from big_align.training.step import compile_step, make_train_step
from tests import tiny

TOKENIZER = WordTokenizer(("a", "photo", "of", "cat", "dog"), tiny.LENGTH)
CLASSES = ClassList.from_names(("cat", "dog"))
TAGS = make_tag_list(("cat", "dog"), (9, 6), TOKENIZER)
CLUSTERS, ROWS = 29, 16


def _make_idea(*given):
    """Without dropout, whose draws are those of a micro-batch."""
    objective = Idea(*given, TAGS, TOKENIZER)
    objective.scorer.head = objective.scorer.head.clone(dropout=0.0)
    return objective


OBJECTIVES = {
    "clip": Clip,
    "siglip": Siglip,
    "unicl": Unicl,
    "iclip": lambda *given: Iclip(*given, CLASSES, TOKENIZER, "a {}"),
    "idea": _make_idea,
    "mlcd": lambda *given: Mlcd(
        *given, CLUSTERS, labels_per_image=3, scale=8.0, sampling_ratio=0.5
    ),
    "multitask": lambda *given: MultiTask(*given, 2),
    "cross_entropy": lambda *given: CrossEntropy(*given, 2),
    "supcon": SupCon,
    "lit": Lit,
}
EVERY_DAY = ("clip", "supcon")


def make_batch(name):
    rng, batch = np.random.default_rng(0), tiny.make_batch(ROWS, masked=2)
    if name in ("unicl", "iclip", "multitask", "cross_entropy", "supcon"):
        batch["label"] = rng.integers(0, 2, ROWS).astype(np.int32)
    if name == "supcon":
        batch["image"] = rng.integers(0, 256, (ROWS, 2, 8, 8, 3)).astype(np.uint8)
    if name == "mlcd":
        batch["clusters"] = rng.integers(0, CLUSTERS, (ROWS, 3)).astype(np.int32)
    if name == "idea":
        batch["tags"] = rng.integers(-1, 2, (ROWS, 2)).astype(np.int32)
    return batch


def compile_tower(name, devices=1, microbatches=1, **settings):
    """Returns a compiled step, a state and a batch on its devices."""
    image = ViT("ti/2", width=16, depth=1, heads=2, mlp_dim=32, **settings)
    mesh = tiny.make_mesh(devices)
    objective = OBJECTIVES[name](tiny.make_model().clone(image=image), mesh)
    rate = optax.linear_schedule(1e-2, 1e-2, 1)
    optimizer = make_optimizer(rate, "adamw")
    rows = make_row_optimizer("adamw") if objective.table_sizes else None
    batch = make_batch(name)
    one = {field: array[:1] for field, array in batch.items()}
    _, create = describe_state(objective, optimizer, one, mesh, seed=1, row_optimizer=rows)
    how = dict(microbatches=microbatches, row_optimizer=rows, learning_rate=rate)
    step = make_train_step(objective, optimizer, mesh, **how)
    placed, state = place_batch(batch, mesh), create()
    return compile_step(step, state, placed, mesh), state, placed


def run_steps(name, steps, keep=0.5, **settings):
    """Returns the losses of steps on one batch."""
    compiled, state, placed = compile_tower(name, keep=keep, **settings)
    losses = []
    for _ in range(steps):
        state, metrics = compiled(state, placed)
        losses.append(float(metrics["loss"]))
    return np.array(losses)


@pytest.mark.parametrize(
    "name", [x if x in EVERY_DAY else pytest.param(x, marks=pytest.mark.slow) for x in OBJECTIVES]
)
def test_every_objective_learns_from_half_of_the_patches(name):
    losses = run_steps(name, 20)
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean()
    split = run_steps(name, 3, devices=4, microbatches=2)
    np.testing.assert_allclose(split, losses[:3], rtol=2e-5)
    whole = run_steps(name, 3, keep=1.0)
    if name == "lit":  # whose locked image tower sees all
        np.testing.assert_array_equal(losses[:3], whole)
    else:
        assert np.abs(losses[:3] - whole).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["sincos", "rotary"])
def test_other_positions_are_those_of_the_patches_however_a_batch_is_split(positions):
    one = run_steps("clip", 3, positions=positions)
    many = run_steps("clip", 3, devices=8, microbatches=2, positions=positions)
    np.testing.assert_allclose(many, one, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("by", WAYS)
def test_devices_draw_for_their_own_images_and_send_nothing_for_it(by):
    sent = []
    for keep in (1.0, 0.25):
        compiled, _, _ = compile_tower("clip", devices=8, keep=keep, keep_by=by)
        program = parse_program(compiled.as_text())
        sent.append(list_collectives(program, [0] * 8))
    assert sent[0] == sent[1]
    every = (each for run in program.computations.values() for each in run.instructions.values())
    drawn = {each.outputs[0].shape[0] for each in every if each.opcode == "sort"}
    assert drawn == {ROWS // 8}


def test_each_step_draws_other_patches():
    """With a learning rate of zero the losses of one batch differ by the patches alone."""
    kept = ViT("ti/2", width=16, depth=1, heads=2, mlp_dim=32, keep=0.5)
    losses = {}
    for keep in (0.5, 1.0):
        objective = Clip(tiny.make_model().clone(image=kept.clone(keep=keep)), tiny.make_mesh())
        optimizer = make_optimizer(optax.constant_schedule(0.0), "sgd")
        batch = tiny.make_batch(ROWS)
        one = {field: array[:1] for field, array in batch.items()}
        _, create = describe_state(objective, optimizer, one, objective.mesh, seed=1)
        step = make_train_step(objective, optimizer, objective.mesh)
        placed, state, found = place_batch(batch, objective.mesh), create(), []
        compiled = compile_step(step, state, placed, objective.mesh)
        for _ in range(4):
            state, metrics = compiled(state, placed)
            found.append(float(metrics["loss"]))
        losses[keep] = jnp.array(found)
    assert len(np.unique(losses[0.5])) == 4 and np.ptp(losses[1.0]) < 1e-6
