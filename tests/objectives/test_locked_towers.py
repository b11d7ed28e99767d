"""Locked towers stay as they are, and their features may stand in for what goes into them."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_align.errors import ConfigError, UserError
from big_align.objectives.align import Align
from big_align.objectives.clip import Clip
from big_align.objectives.cross_entropy import CrossEntropy
from big_align.objectives.siglip import Siglip
from big_align.parallel.batches import place_batch
from big_align.training.step import full_gradients
from tests import tiny

KEY = jax.random.PRNGKey(0)
BOTH = ("image", "text")
HEADS = {"image_projection": True, "embedding_dim": 8}


def make_objective(kind=Align, locked=BOTH, **model):
    made = tiny.make_model(dropout=0.5).clone(locked=locked, **HEADS | model)
    return kind(made, tiny.make_mesh())


def make_params(objective):
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(2))
    params, model_state = nn.meta.unbox(objective.init(KEY, batch))
    # Statistics as of a trained tower: those of a batch are others.
    return params, jax.tree.map(lambda x: x + 0.02, model_state)


def differentiate(objective, variables, batch):
    batch = place_batch(batch, objective.mesh)
    grads, new_state, loss, *_ = jax.jit(
        lambda: full_gradients(objective, *variables, batch, KEY, objective.mesh)
    )()
    return loss, grads, new_state


def with_features(objective, variables, batch, fields):
    """The batch as a loader makes it that reads features; token ids mean nothing then."""
    found, batch = {}, jax.tree.map(jnp.asarray, batch)
    if "image_embedding" in fields:
        found["image_embedding"] = objective.image_features(*variables, batch)
    if "text_embedding" in fields:
        length = batch["text"].shape[-1]
        texts = {k: batch[k].reshape(-1, length) for k in ("text", "text_mask")}
        rows = objective.text_features(*variables, texts)
        found["text_embedding"] = rows.reshape(len(batch["mask"]), -1, rows.shape[-1])
    rest = {k: v for k, v in batch.items() if k != "image" or "image_embedding" not in fields}
    blank = {"text": np.zeros_like(batch["text"])} if "text_embedding" in fields else {}
    return jax.tree.map(np.asarray, rest | blank | found)


def assert_close(left, right):
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * max(np.abs(y).max(), 1e-2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "texts", "fields"),
    [
        (Align, (), ("image_embedding", "text_embedding")),
        (Align, (3,), ("image_embedding", "text_embedding")),
        (Clip, (3,), ("text_embedding",)),
        (Siglip, (), ("image_embedding",)),
    ],
)
def test_features_give_the_loss_and_gradients_of_the_towers_run_in_the_step(kind, texts, fields):
    objective = make_objective(kind)
    variables = make_params(objective)
    batch = tiny.make_batch(8, masked=2, texts=texts)
    expected = differentiate(objective, variables, batch)
    embedded = with_features(objective, variables, batch, fields)
    assert_close(differentiate(objective, variables, embedded), expected)
    grads = expected[1]["model"]
    assert not any(np.any(x) for part in BOTH for x in jax.tree.leaves(grads[part]))
    assert all(np.any(grads[f"project_{part}"]["kernel"]) for part in BOTH)
    jax.tree.map(np.testing.assert_array_equal, expected[2], variables[1])


@pytest.mark.slow
@pytest.mark.parametrize(("locked", "trained"), [("image", "text"), ("text", "image")])
def test_one_tower_is_locked_and_the_other_learns(locked, trained):
    objective = make_objective(locked=(locked,))
    variables = make_params(objective)
    _, grads, new_state = differentiate(objective, variables, tiny.make_batch(8))
    assert objective.frozen == (f"model/{locked}",)
    assert not any(np.any(x) for x in jax.tree.leaves(grads["model"][locked]))
    assert any(np.any(x) for x in jax.tree.leaves(grads["model"][trained]))
    moved = jax.tree.map(lambda x, y: np.any(x != y), new_state, variables[1])
    assert all(jax.tree.leaves(moved)) == (trained == "image") == any(jax.tree.leaves(moved))


@pytest.mark.slow
def test_a_classifier_learns_the_same_from_features():
    model = tiny.make_model().clone(locked=("image",))
    objective = CrossEntropy(model, tiny.make_mesh(), num_classes=3)
    variables = make_params(objective)
    batch = tiny.make_batch(8) | {"label": np.arange(8, dtype=np.int32) % 3}
    embedded = with_features(objective, variables, batch, ("image_embedding",))
    expected = differentiate(objective, variables, batch)
    assert_close(differentiate(objective, variables, embedded), expected)
    assert np.any(expected[1]["classifier"]["kernel"])


def test_features_of_a_tower_that_is_trained_are_an_error():
    objective = make_objective(locked=("image",))
    variables = jax.eval_shape(lambda: make_params(objective))
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(4))
    batch |= {"text_embedding": jnp.zeros((4, 1, 16))}
    with pytest.raises(UserError, match="text_embedding stands for the text tower, which is trai"):
        jax.eval_shape(lambda v: objective.encode(*v, batch, KEY), variables)


def test_a_locked_part_that_is_no_tower_is_named():
    with pytest.raises(ValueError, match="locked has 'head', which is no tower"):
        make_params(make_objective(locked=("head",)))


@pytest.mark.parametrize(
    ("kind", "locked", "what", "message"),
    [
        (Align, ("image",), "features", r"write --config.model.locked=\"\('text',\)\", or leave"),
        (CrossEntropy, BOTH, "features", "the objective takes none: leave it out"),
        (Align, BOTH, "embedding", "holds the embedding of each example, not the features of its"),
    ],
)
def test_folders_that_cannot_stand_for_a_tower_are_refused(tmp_path, kind, locked, what, message):
    index = {"format": 1, "dim": 16, "made_by": {"what": what}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    more = {"num_classes": 3} if kind is CrossEntropy else {}
    objective = kind(tiny.make_model().clone(locked=locked, **HEADS), tiny.make_mesh(), **more)
    folders = {"text_embedding": str(tmp_path)}
    with pytest.raises(ConfigError, match="config.data.precomputed.text_embedding.*" + message):
        objective.check_precomputed(folders, "config.data")
    if kind is Align and what == "features":
        make_objective().check_precomputed(folders, "config.data")
