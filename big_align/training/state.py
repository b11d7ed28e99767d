"""The training state, and how a fresh one is described and made on the mesh."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct, traverse_util
from jax.sharding import Mesh
from jaxtyping import Array

from big_align.core.types import ModelState, Objective, Params
from big_align.parallel.logical_axes import state_shardings
from big_align.parallel.meshes import replicated
from big_align.training.initialization import Fresh
from big_align.training.row_tables import RowOptimizer


@struct.dataclass
class TrainState:
    """Everything that training changes, as one pytree.

    Averaged parameters need averaged statistics: the latest ones belong to other parameters.
    """

    # Fields are arrays, or what replaces them in a transformed tree: shapes, placements.
    step: Any  # int32, updates done
    params: Params
    model_state: ModelState
    opt_state: Any  # moments and counts
    # uint32 [2], of the run. It never changes: step k, counted through all stages, draws from
    # `fold_in(rng, k)`.
    rng: Any
    average: Any = None  # moving averages of `params` and `model_state`, if they are kept
    tables: Any = struct.field(default_factory=dict)  # `row_tables.Table`s by name

    @property
    def evaluated(self) -> tuple[Params, ModelState]:
        """The parameters and statistics to evaluate: the averages if they are kept."""
        return (self.params, self.model_state) if self.average is None else self.average

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's arrays by path, "params/..." and "batch_stats/..."."""
        weights = {"params": self.params["model"], **self.model_state}
        return {k: v.shape for k, v in traverse_util.flatten_dict(weights, sep="/").items()}


def replace_weights(state: TrainState, weights: Mapping[str, Any]) -> TrainState:
    """Returns a fresh state that starts from given weights; every leaf keeps its placement.

    Their paths are "params/..." and "batch_stats/..." of the model, and those of the objective's
    own parameters, such as "classifier/...". Of an array with fewer rows, the others stay fresh.
    """

    def replace(path: str, leaf: Any) -> Any:
        if path not in weights:
            return leaf
        array = weights[path]
        if array.shape != leaf.shape:
            return _set_rows(leaf, array)
        return jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda index: array[index].astype(leaf.dtype)
        )

    def replace_tree(tree: Any) -> Any:
        flat = traverse_util.flatten_dict(tree, sep="/")
        return traverse_util.unflatten_dict({k: replace(k, v) for k, v in flat.items()}, sep="/")

    model = replace_tree({"params": state.params["model"]})["params"]
    own = {name: value for name, value in state.params.items() if name != "model"}
    params = {**replace_tree(own), "model": model}
    model_state = replace_tree(state.model_state)
    average = None if state.average is None else jax.tree.map(jnp.copy, (params, model_state))
    return dataclasses.replace(state, params=params, model_state=model_state, average=average)


def _set_rows(leaf: Array, rows: Any) -> Array:
    """Replaces the first rows of an array, where it is."""
    put = jax.jit(lambda leaf, x: leaf.at[: len(x)].set(x), out_shardings=leaf.sharding)
    return put(leaf, rows.astype(leaf.dtype))


def describe_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    batch: Mapping[str, Any],
    mesh: Mesh,
    *,
    seed: int = 0,
    averaged: bool = False,
    row_optimizer: RowOptimizer | None = None,
) -> tuple[TrainState, Callable[[], TrainState]]:
    """Describes the state of a fresh run without making it.

    The batch has arrays or shapes, of any batch size. The seed is that of the initial parameters
    and of every random draw of the run. Without `row_optimizer` tables are left out, as in
    evaluation.

    Returns shapes with their placement, and a function that makes the state with that placement.
    """
    # Initialization needs the shapes of one example, not the memory of a batch.
    example = {k: jnp.zeros((1, *v.shape[1:]), v.dtype) for k, v in batch.items()}
    rng = jax.random.PRNGKey(seed)

    def create() -> TrainState:
        init_rng, train_rng, table_rng = jax.random.split(rng, 3)
        boxed, model_state = objective.init(init_rng, example)
        params, model_state = nn.meta.unbox((boxed, model_state))
        tables = {}
        if row_optimizer is not None:
            tables = jax.tree.map(row_optimizer.init, dict(objective.init_tables(table_rng)))
        return TrainState(
            step=jnp.int32(0),
            params=boxed,  # with the names of their axes
            model_state=model_state,
            opt_state=optimizer.init(params),
            rng=train_rng,
            average=(params, model_state) if averaged else None,
            tables=tables,
        )

    fresh = Fresh(create)
    shapes = nn.meta.unbox(fresh.shapes)
    shardings = state_shardings(fresh.shapes.params, shapes, mesh)
    described = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings
    )
    return described, lambda: nn.meta.unbox(fresh.make(shardings, replicated(mesh)))
