"""The train step: 8 devices equal 1, micro-batches equal the whole, resuming equals going on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from big_align.objectives.align import Align
from big_align.parallel.batches import place_batch
from big_align.training.optimizers import frozen_mask, make_optimizer
from big_align.training.state import TrainState, describe_state
from big_align.training.step import (
    accumulated_gradients,
    compile_step,
    full_gradients,
    make_train_step,
)
from tests import tiny


def close(left, right, tolerance=2e-5):
    """Leaves are equal up to a fraction of the largest entry of the leaf."""
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True
    ):
        x, y = np.asarray(x), np.asarray(y)
        atol = tolerance * max(np.abs(y).max(initial=0), 1e-2)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


def run_steps(
    devices, fsdp=1, steps=3, group_size=None, microbatches=1, decay=None, texts=(), **objective
):
    mesh = tiny.make_mesh(devices, fsdp)
    made = tiny.make_objective(mesh, group_size, **objective)
    optimizer = make_optimizer(name="lamb", learning_rate=optax.constant_schedule(1e-2))
    _, create = describe_state(
        made, optimizer, tiny.make_batch(1), mesh, seed=1, averaged=decay is not None
    )
    state = create()
    batches = [place_batch(tiny.make_batch(16, seed, seed, texts), mesh) for seed in range(steps)]
    step = make_train_step(made, optimizer, mesh, microbatches=microbatches, average_decay=decay)
    compiled = compile_step(step, state, batches[0], mesh)
    losses = []
    for batch in batches:
        state, metrics = compiled(state, batch)
        losses.append(float(metrics["loss"]))
    return np.array(losses), state


OTHERS = [pytest.param(*each, marks=pytest.mark.slow) for each in ((1, None), (1, 2), (4, 2))]


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "group_size"), [(4, None), *OTHERS])
def test_eight_devices_equal_one(fsdp, group_size):
    one, state_one = run_steps(1, group_size=group_size)
    eight, state_eight = run_steps(8, fsdp, group_size=group_size)
    np.testing.assert_allclose(eight, one, rtol=1e-5)
    close(state_eight.params, state_one.params, 2e-4)
    close(state_eight.model_state, state_one.model_state)


@pytest.mark.slow
def test_several_texts_an_image_on_devices_and_in_microbatches():
    one, state_one = run_steps(1, group_size=2, texts=(3,))
    many, state_many = run_steps(4, group_size=2, texts=(3,), microbatches=2)
    np.testing.assert_allclose(many, one, rtol=1e-5)
    close(state_many.params, state_one.params, 2e-4)


@pytest.mark.slow
def test_fsdp_splits_parameters_and_moments():
    _, state = run_steps(8, fsdp=4, steps=1)
    kernel = lambda tree: tree["model"]["text"]["block_00"]["mlp"]["up"]["kernel"]  # noqa: E731
    moments = optax.tree_utils.tree_get(state.opt_state, "mu")
    for array in (kernel(state.params), kernel(moments)):
        assert array.addressable_shards[0].data.size * 4 == array.size


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_microbatches_with_aligned_groups_change_nothing(devices):
    whole, state_whole = run_steps(devices, group_size=2)
    parts, state_parts = run_steps(devices, group_size=2, microbatches=2)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    close(state_parts.params, state_whole.params, 2e-4)
    close(state_parts.model_state, state_whole.model_state)


@pytest.mark.slow
def test_fixed_statistics_stay_and_make_rows_independent():
    """Without groups that align, micro-batches change nothing either."""
    batch, found = tiny.make_batch(16), []
    for microbatches in (1, 4):
        mesh = tiny.make_mesh(2)
        model = tiny.make_model()
        objective = Align(model.clone(image=model.image.clone(fixed_statistics=True)), mesh)
        params, model_state = _unboxed(objective, tiny.make_batch(1))
        placed = place_batch(batch, mesh)
        arguments = (objective, params, model_state, placed, jax.random.key(0), mesh)
        if microbatches == 1:
            found.append(jax.jit(lambda a=arguments: full_gradients(*a))())
        else:
            found.append(jax.jit(lambda a=arguments: accumulated_gradients(*a, 4))())
        jax.tree.map(np.testing.assert_array_equal, found[-1][1], model_state)
    close(found[1][0], found[0][0], 2e-4)
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=1e-5)


@pytest.mark.slow
def test_accumulated_gradients_keep_every_negative():
    """The gradients are those of the whole batch, temperature included; averages are not."""
    mesh = tiny.make_mesh(2)
    objective = tiny.make_objective(mesh, group_size=2)
    batch = place_batch(tiny.make_batch(16), mesh)
    params, model_state = _unboxed(objective, tiny.make_batch(1))
    arguments = (objective, params, model_state, batch, jax.random.PRNGKey(0), mesh)
    whole = jax.jit(lambda: full_gradients(*arguments)[0])()
    parts = jax.jit(lambda: accumulated_gradients(*arguments, 4)[0])()
    close(parts, whole)
    assert abs(float(whole["temperature"])) > 1e-3

    halves = [{k: v[i::2] for k, v in tiny.make_batch(16).items()} for i in range(2)]
    gradients = jax.jit(lambda batch: full_gradients(*arguments[:3], batch, *arguments[4:])[0])
    averaged = np.mean([gradients(place_batch(h, mesh))["temperature"] for h in halves])
    assert abs(averaged - whole["temperature"]) > 1e-2 * abs(whole["temperature"])


def _unboxed(objective, batch):
    import flax.linen as nn

    return nn.meta.unbox(jax.jit(objective.init)(jax.random.PRNGKey(0), batch))


@pytest.mark.slow
def test_a_masked_row_changes_no_gradient_but_through_batch_norm():
    """With one group a row, a padded batch has the loss and gradients of its real rows."""
    mesh = tiny.make_mesh(1)
    objective = tiny.make_objective(mesh, group_size=1)
    params, model_state = _unboxed(objective, tiny.make_batch(1))
    rest = (jax.random.PRNGKey(0), mesh)
    padded = jax.tree.map(jnp.asarray, tiny.make_batch(8, masked=3))
    sliced = {k: v[:5] for k, v in padded.items()}
    gradients = jax.jit(lambda batch: full_gradients(objective, params, model_state, batch, *rest))
    with_padding, _, loss, *_ = gradients(padded)
    without, _, expected, *_ = gradients(sliced)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    close(with_padding, without)


@pytest.mark.slow
def test_the_average_of_parameters_follows_them():
    _, state = run_steps(1, decay=0.5)
    assert state.evaluated is state.average
    for average, last in zip(state.average, (state.params, state.model_state), strict=True):
        gap = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), average, last)
        assert max(jax.tree.leaves(gap)) > 0


@pytest.mark.parametrize(("learned", "projected"), [(0.01, 0.05), (0.3, 0.3)])
def test_the_temperature_is_bounded_from_below(learned, projected):
    objective = tiny.make_objective(tiny.make_mesh(1), min_temperature=0.05)
    params = objective.project({"temperature": jnp.float32(learned)})
    np.testing.assert_allclose(params["temperature"], projected, rtol=1e-6)


@pytest.mark.slow
def test_a_tiny_run_overfits():
    mesh = tiny.make_mesh(1)
    objective = tiny.make_objective(mesh, label_smoothing=0.0)
    optimizer = make_optimizer(name="adamw", learning_rate=optax.constant_schedule(1e-2))
    _, create = describe_state(objective, optimizer, tiny.make_batch(1), mesh)
    state, batch = create(), place_batch(tiny.make_batch(8), mesh)
    compiled = compile_step(make_train_step(objective, optimizer, mesh), state, batch, mesh)
    for _ in range(60):
        state, metrics = compiled(state, batch)
    assert float(metrics["loss"]) < 0.1


@pytest.mark.slow
def test_state_is_one_pytree():
    _, state = run_steps(1, steps=1)
    assert isinstance(state, TrainState)
    assert int(state.step) == 1
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))


FROZEN = (
    *("model/text/token_embedding", "model/text/position_embedding", "model/text/block_00"),
    *("model/text/token_type_embedding", "model/text/embedding_norm"),
)


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [1, 2])
def test_frozen_parameters_cost_no_backward_pass_and_change_no_other(microbatches):
    mesh = tiny.make_mesh()
    made, batch = tiny.make_objective(mesh, group_size=2), tiny.make_batch(16)
    optimizer = make_optimizer(1e-2, "adamw", frozen=FROZEN)
    _, create = describe_state(made, optimizer, batch, mesh, seed=1)
    placed = place_batch(batch, mesh)

    def run(**options):
        step = make_train_step(made, optimizer, mesh, microbatches=microbatches, **options)
        compiled = compile_step(step, create(), placed, mesh)
        state, metrics = compiled(create(), placed)
        return compiled.cost_analysis()["flops"], state.params, metrics

    flops, params, metrics = run(frozen=FROZEN)
    more_flops, expected, more_metrics = run()
    close(params, expected)
    assert float(metrics["loss"]) == float(more_metrics["loss"])
    assert float(metrics["gradient_norm"]) < float(more_metrics["gradient_norm"])
    rows = tiny.make_objective(mesh, group_size=2)  # what the text tower alone costs
    variables = create().params, create().model_state
    texts = {k: placed[k] for k in ("text", "text_mask")}
    once = jax.jit(rows.embed_text).lower(*variables, texts).compile().cost_analysis()["flops"]
    assert more_flops - flops > (1.5 if microbatches == 1 else 0.7) * once


@pytest.mark.slow
def test_the_average_of_frozen_parameters_is_themselves_and_costs_nothing():
    mesh = tiny.make_mesh()
    made, batch = tiny.make_objective(mesh, group_size=2), tiny.make_batch(16)
    optimizer = make_optimizer(1e-2, "adamw", frozen=FROZEN)
    placed = place_batch(batch, mesh)

    def run(decay, frozen=FROZEN):
        averaged = decay is not None
        _, create = describe_state(made, optimizer, batch, mesh, seed=1, averaged=averaged)
        step = make_train_step(made, optimizer, mesh, average_decay=decay, frozen=frozen)
        compiled = compile_step(step, create(), placed, mesh)
        state = create()
        for _ in range(3):
            state, _ = compiled(state, placed)
        return compiled.cost_analysis()["bytes accessed"], state

    size, state = run(0.9)
    close(state.average, run(0.9, frozen=())[1].average)
    stays = frozen_mask(state.params, FROZEN)
    sizes = {True: 0, False: 0}
    for average, param, still in zip(
        *map(jax.tree.leaves, (state.average[0], state.params, stays)), strict=True
    ):
        assert not still or np.array_equal(average, param)
        sizes[still] += param.nbytes
    more = size - run(None)[0]
    assert more < 3.2 * sizes[False] < 3 * sum(sizes.values()), (more, sizes)
