"""The pure train step: a batch becomes gradients, gradients become an update.

It composes the methods of an objective and knows no objective by name. With one micro-batch, the
loss is differentiated straight through. With several, embeddings are computed twice: a first pass
caches the outputs of every micro-batch, the loss of the whole batch gives the gradient of each
output, and a second pass pulls these back to the parameters, one micro-batch at a time. So every
negative is kept and the gradient is exact, with the memory of one micro-batch (Gao et al. 2021,
"Scaling deep contrastive learning batch size under memory limited setup").

BatchNorm under micro-batches: a micro-batch is normalized by its own statistics in both passes, and
the running statistics move once per step, by the mean over micro-batches. A micro-batch takes
contiguous rows from every device. So if the statistics group divides the rows of a micro-batch on a
device, the groups, and with them all numbers, are the same as without accumulation.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from big_align.core.types import Batch, Metrics, ModelState, Objective, Outputs, Params
from big_align.parallel.devices import traced
from big_align.parallel.devices.compilation import compile_lowered
from big_align.parallel.distributed import agreement
from big_align.parallel.meshes import batch_sharding, microbatch_sharding, replicated
from big_align.training.optimizers import frozen_mask, update_average
from big_align.training.row_tables import Drawn, RowOptimizer, join_rows, split_rows
from big_align.training.state import TrainState

Rows = dict[str, Array]  # the drawn rows of each table [n d]
Gradients = tuple[Params, ModelState, Float[Array, ""], Metrics, Rows]
_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def _show(params: Params, drawn: Mapping[str, Drawn], rows: Rows) -> Params:
    """Returns what `loss` sees: the parameters and, if there are tables, their drawn rows."""
    return {**params, "drawn": join_rows(drawn, rows)} if drawn else params


def full_gradients(
    objective: Objective,
    params: Params,
    model_state: ModelState,
    batch: Batch,
    rng: PRNGKeyArray,
    mesh: Mesh,
    drawn: Mapping[str, Drawn] = _NOTHING,
) -> Gradients:
    """Differentiates the loss of the whole batch straight through."""
    prepare_rng, encode_rng = jax.random.split(rng)

    def forward(params: Params, rows: Rows) -> Any:
        prepared = objective.prepare(params, batch, prepare_rng)
        outputs, new_state = objective.encode(params, model_state, batch, encode_rng)
        loss, metrics = objective.loss(_show(params, drawn, rows), outputs, prepared, batch)
        return loss, (new_state, metrics)

    (loss, (new_state, metrics)), (grads, row_grads) = jax.value_and_grad(
        forward, argnums=(0, 1), has_aux=True
    )(params, split_rows(drawn))
    return grads, new_state, loss, metrics, row_grads


def _split(tree: Any, microbatches: int, mesh: Mesh) -> Any:
    """Reshapes [b ...] to [microbatches, b / microbatches, ...]; no row moves between devices."""

    def split(x: Array) -> Array:
        x = x.reshape(mesh.size, microbatches, -1, *x.shape[1:]).swapaxes(0, 1)
        x = x.reshape(microbatches, -1, *x.shape[3:])
        return jax.lax.with_sharding_constraint(x, microbatch_sharding(mesh))

    return jax.tree.map(split, tree)


def _merge(tree: Any, mesh: Mesh) -> Any:
    """Reverts `_split`."""

    def merge(x: Array) -> Array:
        x = x.reshape(x.shape[0], mesh.size, -1, *x.shape[2:]).swapaxes(0, 1)
        x = x.reshape(-1, *x.shape[3:])
        return jax.lax.with_sharding_constraint(x, batch_sharding(mesh))

    return jax.tree.map(merge, tree)


def accumulated_gradients(
    objective: Objective,
    params: Params,
    model_state: ModelState,
    batch: Batch,
    rng: PRNGKeyArray,
    mesh: Mesh,
    microbatches: int,
    drawn: Mapping[str, Drawn] = _NOTHING,
) -> Gradients:
    """Computes what `full_gradients` does with the memory of one micro-batch."""
    prepare_rng, encode_rng = jax.random.split(rng)
    rows = _split(dict(batch), microbatches, mesh)
    rngs = jax.random.split(encode_rng, microbatches)

    encoded = jax.lax.map(lambda x: objective.encode(params, model_state, *x), (rows, rngs))
    outputs, states = _merge(encoded[0], mesh), encoded[1]
    # Added to the old ones, the mean of statistics that stay is exactly themselves.
    new_state = jax.tree.map(lambda old, x: old + jnp.mean(x - old, axis=0), model_state, states)

    prepared, pull_prepared = jax.vjp(lambda p: objective.prepare(p, batch, prepare_rng), params)

    def compare(params: Params, rows: Rows, outputs: Outputs, prepared: Any) -> Any:
        return objective.loss(_show(params, drawn, rows), outputs, prepared, batch)

    (loss, metrics), (grads, row_grads, output_grads, prepared_grads) = jax.value_and_grad(
        compare, argnums=(0, 1, 2, 3), has_aux=True
    )(params, split_rows(drawn), outputs, prepared)
    grads = jax.tree.map(jnp.add, grads, pull_prepared(prepared_grads)[0])

    def pull_back(grads: Params, x: Any) -> tuple[Params, None]:
        microbatch, key, cotangent = x
        _, pull = jax.vjp(lambda p: objective.encode(p, model_state, microbatch, key)[0], params)
        return jax.tree.map(jnp.add, grads, pull(cotangent)[0]), None

    cotangents = _split(output_grads, microbatches, mesh)
    grads, _ = jax.lax.scan(pull_back, grads, (rows, rngs, cotangents))
    return grads, new_state, loss, metrics, row_grads


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    microbatches: int = 1,
    average_decay: float | None = None,
    row_optimizer: RowOptimizer | None = None,
    learning_rate: optax.Schedule | None = None,
    gradient_dtype: str = "float32",
    frozen: tuple[str, ...] = (),
    steps_before: int = 0,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Makes the pure function from a state and a batch to the next state and metrics.

    The learning rate is that of the rows of tables, which also need a row optimizer. Gradients of
    weights are summed over devices in `gradient_dtype`. The optimizer leaves the `frozen` paths
    alone: their gradients are zero, so the compiler omits the backward pass that would compute
    them. Random draws go on after those of `steps_before`, the steps of stages before. The metrics
    are those of the objective and `loss`, `gradient_norm`, `parameter_norm`, `update_norm`.
    """

    def gradients(state: TrainState, batch: Batch) -> tuple[Gradients, dict[str, Drawn]]:
        key = jax.random.fold_in(state.rng, state.step + steps_before)
        augment_rng, rng, draw_rng = jax.random.split(key, 3)
        batch = objective.augment(batch, augment_rng, state.step)
        rows = len(jax.tree.leaves(dict(batch))[0])
        batch = {**batch, "key": jax.random.split(jax.random.fold_in(key, 3), rows)}
        drawn = dict(objective.draw(state.tables, batch, draw_rng))
        arguments = (objective, state.params, state.model_state, batch, rng, mesh)
        if microbatches == 1:
            return full_gradients(*arguments, drawn), drawn
        return accumulated_gradients(*arguments, microbatches, drawn), drawn

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with traced.weights_on(mesh, gradient_dtype):
            (grads, model_state, loss, metrics, row_grads), drawn = gradients(state, batch)
        stays = frozen_mask(grads, frozen)
        grads = jax.tree.map(lambda g, still: jnp.zeros_like(g) if still else g, grads, stays)
        tables = {}
        for name, each in drawn.items():
            assert row_optimizer is not None and learning_rate is not None  # required of tables
            table, rate = state.tables[name], learning_rate(state.step)
            tables[name] = row_optimizer.update(table, each, row_grads[name], rate, mesh)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = objective.project(optax.apply_updates(state.params, updates))
        average = state.average
        if average_decay is not None:
            average = update_average(average, (params, model_state), average_decay, state.step)
            # Frozen parameters are their own average: moving it would only read and write memory.
            held = jax.tree.map(
                lambda old, new, still: old if still else new, state.average[0], average[0], stays
            )
            average = held, average[1]
        # Fused with a sum, an update could not be written over what it updates.
        written, added = jax.tree.map(jax.lax.optimization_barrier, (params, updates))
        metrics = metrics | {
            "loss": loss,
            "gradient_norm": optax.global_norm(grads),
            "parameter_norm": optax.global_norm(written),
            "update_norm": optax.global_norm(added),
        }
        return TrainState(
            step=state.step + 1,
            params=params,
            model_state=model_state,
            opt_state=opt_state,
            rng=state.rng,
            average=average,
            tables=tables,
        ), metrics

    return train_step


def trace_step(
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    state: TrainState,
    batch: Batch,
    mesh: Mesh,
) -> jax.stages.Traced:
    """Traces a train step for the placement of a state, which is donated; shapes will do."""
    shardings = jax.tree.map(lambda x: x.sharding, state)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return step(state, batch)  # JAX caches traces by function, and contexts change them

    placed = shardings, replicated(mesh)
    jitted = jax.jit(train_step, donate_argnums=0, out_shardings=placed)
    return jitted.trace(state, batch)


def compile_step(
    step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    state: TrainState,
    batch: Batch,
    mesh: Mesh,
    options: Mapping[str, Any] = _NOTHING,
) -> jax.stages.Compiled:
    """Compiles a train step, after a check that all processes compile the same."""
    lowered = trace_step(step, state, batch, mesh).lower()
    agreement.check_step(lowered)
    return compile_lowered(lowered, options)
