"""A locked image tower stays as it is, costs its forward pass, and the rest learns as with CLIP."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.models.vit import ViT
from big_align.objectives.clip import Clip
from big_align.objectives.lit import Lit
from big_align.parallel.batches import place_batch
from big_align.training.optimizers import make_optimizer
from big_align.training.state import describe_state
from big_align.training.step import (
    accumulated_gradients,
    compile_step,
    full_gradients,
    make_train_step,
)
from tests import tiny

KEY = jax.random.PRNGKey(0)


def make_objective(devices=1, fsdp=1, kind=Lit, tower="resnet", **model):
    """With a BatchNorm tower, or a transformer, which does the same in training and evaluation."""
    made = tiny.make_model(dropout=model.pop("dropout", 0.0)).clone(**model)
    if tower == "vit":
        image = ViT("ti/4", width=16, depth=model.get("depth", 2), heads=2, mlp_dim=64)
        made = made.clone(image=image)
    return kind(made, tiny.make_mesh(devices, fsdp))


def make_params(objective):
    batch = jax.tree.map(jnp.asarray, tiny.make_batch(2))
    params, model_state = nn.meta.unbox(jax.jit(objective.init)(KEY, batch))
    # Statistics as of a trained tower: those of a batch are others.
    return params, jax.tree.map(lambda x: x + 0.02, model_state)


def with_embeddings(objective, params, model_state, batch):
    """The batch as a loader makes it that reads embeddings in place of images."""
    features = jax.jit(objective.image_features)(params, model_state, batch)
    assert np.all(np.linalg.norm(features, axis=1) > 1e-3)
    rest = {k: v for k, v in batch.items() if k != "image"}
    return rest | {"image_embedding": np.asarray(features)}


def differentiate(objective, params, model_state, batch, gradients=full_gradients):
    batch = place_batch(batch, objective.mesh)
    arguments = objective, params, model_state, batch, KEY, objective.mesh
    grads, new_state, loss, *_ = jax.jit(lambda: gradients(*arguments))()
    jax.tree.map(np.testing.assert_array_equal, new_state, model_state)
    return loss, grads


def assert_close(left, right, tolerance=1e-5):
    """Leaves are equal up to a fraction of the largest entry of the leaf."""
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        atol = tolerance * max(np.abs(y).max(), 1e-2)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def run_steps(objective, batches, microbatches=1):
    mesh = objective.mesh
    optimizer = make_optimizer(1e-2, "adamw", weight_decay=0.1, frozen=objective.frozen)
    _, create = describe_state(objective, optimizer, tiny.make_batch(1), mesh, seed=1)
    first, state = create(), create()
    placed = [place_batch(batch, mesh) for batch in batches]
    step = make_train_step(objective, optimizer, mesh, microbatches=microbatches)
    compiled = compile_step(step, state, placed[0], mesh)
    losses = []
    for batch in placed:
        state, metrics = compiled(state, batch)
        losses.append(float(metrics["loss"]))
    return first, state, losses


class StoppedClip(Clip):
    """The definition: CLIP's loss on embeddings of evaluation, whose gradient is stopped."""

    def encode(self, params, model_state, batch, rng):
        outputs, _ = super().encode(params, model_state, batch, rng)
        zimg = jax.lax.stop_gradient(self.embed_image(params, model_state, batch))
        return outputs | {"zimg": zimg}, model_state


@pytest.mark.slow
@pytest.mark.parametrize("texts", [(), (3,)])
def test_loss_and_gradients_are_clips_with_the_image_side_stopped(texts):
    batch = tiny.make_batch(8, masked=2, texts=texts)
    variables = make_params(make_objective())
    loss, grads = differentiate(make_objective(dropout=0.1), *variables, batch)
    expected = differentiate(make_objective(kind=StoppedClip, dropout=0.1), *variables, batch)
    assert_close((loss, grads), expected)
    assert not any(np.any(x) for x in jax.tree.leaves(grads["model"]["image"]))
    assert np.any(grads["model"]["project_text"]["kernel"]) and grads["log_scale"] != 0


@pytest.mark.slow
def test_a_tower_without_modes_gives_the_loss_and_text_gradients_of_clip_itself():
    batch = tiny.make_batch(8)
    variables = make_params(make_objective(tower="vit"))
    loss, grads = differentiate(make_objective(tower="vit"), *variables, batch)
    expected, whole = differentiate(make_objective(kind=Clip, tower="vit"), *variables, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    image = whole["model"].pop("image")
    del grads["model"]["image"]
    assert_close(grads, whole)
    assert any(np.any(x) for x in jax.tree.leaves(image))


@pytest.mark.slow
def test_the_tower_stays_bit_for_bit_while_the_text_side_learns():
    objective = make_objective(8, fsdp=4)
    first, last, losses = run_steps(objective, [tiny.make_batch(16)] * 20)
    for name in ("params", "model_state"):
        locked = getattr(last, name), getattr(first, name)
        if name == "params":
            locked = [params["model"]["image"] for params in locked]
        jax.tree.map(np.testing.assert_array_equal, *locked)
    assert losses[-1] < losses[0] - 0.5
    moments = optax.tree_utils.tree_get(last.opt_state, "mu")
    assert not jax.tree.leaves(moments["model"]["image"])
    assert jax.tree.leaves(moments["model"]["text"])


@pytest.mark.slow
def test_a_projection_is_trained_and_there_is_none_otherwise():
    batch = tiny.make_batch(8)
    variables = make_params(make_objective(image_projection=True, embedding_dim=8))
    objective = make_objective(image_projection=True, embedding_dim=8)
    _, grads = differentiate(objective, *variables, batch)
    assert np.any(grads["model"]["project_image"]["kernel"])
    assert not any(np.any(x) for x in jax.tree.leaves(grads["model"]["image"]))
    assert "project_image" not in make_params(make_objective())[0]["model"]


@pytest.mark.slow
@pytest.mark.parametrize("projection", [{}, {"image_projection": True, "embedding_dim": 8}])
def test_embeddings_in_the_batch_take_the_place_of_images(projection):
    objective = make_objective(8, **projection)
    variables = make_params(objective)
    batch = tiny.make_batch(16, masked=2)
    expected = differentiate(objective, *variables, batch)
    embedded = with_embeddings(objective, *variables, batch)
    assert_close(differentiate(objective, *variables, embedded), expected)
    if not projection:  # Then only their direction counts.
        short = embedded["image_embedding"] / 7
        embedded["image_embedding"] = short.astype(np.float16)
        assert_close(differentiate(objective, *variables, embedded), expected, 5e-3)


@pytest.mark.slow
def test_embeddings_of_another_tower_are_an_error():
    objective = make_objective()
    params, model_state = make_params(objective)
    batch = tiny.make_batch(4) | {"image_embedding": np.zeros((4, 5), np.float16)}
    with pytest.raises(ValueError, match="has 5 numbers an example and the image tower gives 16"):
        objective.encode(params, model_state, batch, KEY)


@pytest.mark.slow
def test_microbatches_change_nothing():
    """Not even with a BatchNorm of the whole batch, which is in evaluation mode."""
    objective = make_objective(4)
    variables = make_params(objective)
    batch = tiny.make_batch(16, masked=3)
    whole = differentiate(objective, *variables, batch)
    parts = functools.partial(accumulated_gradients, microbatches=2)
    assert_close(differentiate(objective, *variables, batch, parts), whole, 2e-5)


@pytest.mark.slow
def test_eight_devices_equal_one():
    batches = [tiny.make_batch(16, seed, seed) for seed in range(2)]
    _, one, losses_of_one = run_steps(make_objective(), batches)
    _, eight, losses = run_steps(make_objective(8, fsdp=4), batches)
    np.testing.assert_allclose(losses, losses_of_one, rtol=1e-5)
    for x, y in zip(jax.tree.leaves(eight.params), jax.tree.leaves(one.params), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-4)


def count_flops(function, *arguments):
    """What XLA counts of what it has not thrown away."""
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_tower_costs_one_forward_pass_a_step(microbatches):
    """XLA counts a loop's body once: with micro-batches the first pass runs it, the second not."""
    rows = 8
    batch = tiny.make_batch(rows)
    lit, clip = (make_objective(kind=kind, tower="vit") for kind in (Lit, Clip))
    variables = make_params(lit)
    embedded = with_embeddings(lit, *variables, batch)

    def flops(objective, batch):
        kind = full_gradients
        if microbatches > 1:
            kind = functools.partial(accumulated_gradients, microbatches=microbatches)
        # Parameters are arguments: of constants XLA would compute the tower while compiling.
        step = lambda variables, batch: kind(objective, *variables, batch, KEY, objective.mesh)  # noqa: E731
        return count_flops(step, variables, batch)

    part = {"image": batch["image"][: rows // microbatches]}
    once = count_flops(lit.image_features, *variables, part)
    text = flops(lit, embedded)
    assert once > 0.2 * text
    np.testing.assert_allclose(flops(lit, batch) - text, once, rtol=0.05)
    assert flops(clip, batch) - text > 2.5 * once
