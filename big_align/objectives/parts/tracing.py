"""The methods of an objective, traced on shapes: what each returns is what its callers take."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from big_align.core.errors import ConfigError, is_array, is_scalar, make_fault, show_value
from big_align.core.types import (
    FOLDERS_OF_EVERY_RUN,
    OF_EVERY_RUN,
    Batch,
    ModelState,
    Objective,
    Params,
)

WHERE = "config.objective"
WANTED = {
    "init": "parameters and statistics, two dictionaries, of which the first has `model`",
    "augment": "the batch, a dictionary of arrays",
    "encode": "outputs, a dictionary of arrays with the batch leading, and statistics like those "
    "that it gets",
    "loss": "(loss, metrics), a scalar and a dictionary of scalars",
    "project": "parameters like those that it gets",
}
"""What methods return; others that are traced return an array with a row for each example."""


def trace_encoding(
    objective: Objective, example: Batch, rows: int
) -> tuple[Params, ModelState, dict[str, Any]]:
    """Returns the shapes of parameters, statistics and the outputs of a batch, like an example.

    Raises:
      ConfigError: a method returns something else than `types.Objective` says, or asks for what it
        is not given.
    """
    rng = jax.random.PRNGKey(0)
    made = _trace(objective, "init", _is_initial, rng=rng, batch=dict(example))
    params, model_state = nn.meta.unbox(made)
    batch = _augment(objective, example, rows)

    def is_right(made: Any) -> bool:
        if not (_is_pair(made) and _is_batch(made[0])):
            return False
        shapes = [x.shape for x in made[0].values()]
        leading = all(x and x[0] and x[0] % rows == 0 for x in shapes)
        return leading and _is_like(made[1], model_state)

    given = {"params": params, "model_state": model_state, "batch": batch, "rng": rng}
    return params, model_state, dict(_trace(objective, "encode", is_right, **given)[0])


def trace_loss(
    objective: Objective,
    params: Params,
    tables: Mapping[str, Any],
    outputs: Mapping[str, Any],
    example: Batch,
    rows: int,
    parts: int,
) -> None:
    """Traces what a step of micro-batches does besides encoding, from the outputs of one of them.

    The errors are those of `trace_encoding`.
    """
    batch, rng = _augment(objective, example, parts * rows), jax.random.PRNGKey(0)
    whole = {name: _shape((parts * x.shape[0], *x.shape[1:]), x) for name, x in outputs.items()}
    drawn = dict(jax.eval_shape(objective.draw, tables, batch, rng))
    shared = {"params": params, "batch": batch, "rng": rng}
    prepared = _trace(objective, "prepare", lambda made: True, **shared)
    shown = {**params, "drawn": drawn} if drawn else params
    given = {"params": shown, "outputs": whole, "prepared": prepared, "batch": batch}
    _, metrics = _trace(objective, "loss", _is_measured, **given)
    for name in metrics:
        if name in OF_EVERY_RUN or name.startswith(FOLDERS_OF_EVERY_RUN):
            raise ConfigError(
                f"{WHERE}: {type(objective).__name__}.loss returns a metric {name!r}, a name under "
                "which every run logs a number of its own; give it another"
            )
    _trace(objective, "project", lambda made: _is_like(made, params), params=params)


def trace_verb(
    objective: Objective, verb: str, params: Params, model_state: ModelState, batch: Batch
) -> None:
    """Traces a method that evaluators call; the errors are those of `trace_encoding`."""
    rows = len(batch["image"])

    def is_right(made: Any) -> bool:
        return is_array(made) and made.shape[:1] == (rows,)

    _trace(objective, verb, is_right, params=params, model_state=model_state, batch=batch)


def _augment(objective: Objective, example: Batch, rows: int) -> Any:
    batch = {name: _shape((rows, *x.shape[1:]), x) for name, x in example.items()}
    return _trace(
        objective, "augment", _is_batch, batch=batch, rng=jax.random.PRNGKey(0), step=np.int32(0)
    )


def _trace(objective: Objective, method: str, is_right: Callable[[Any], bool], **given: Any) -> Any:
    """Traces a method on what it is given, in the method's order; returns shapes."""

    def run(*arguments: Any) -> Any:
        try:
            made = getattr(objective, method)(*arguments)
        except KeyError as error:
            names = {n: x for n, x in zip(given, arguments, strict=True) if isinstance(x, Mapping)}
            there = (f"{name} has {', '.join(map(str, x))}" for name, x in names.items())
            raise ConfigError(
                f"{WHERE}: {type(objective).__name__}.{method} asks for {error.args[0]!r}, which "
                f"is not there: {'; '.join(there)}"
            ) from error
        if not is_right(made):
            wanted = WANTED.get(method, "an array with a row for each example")
            raise make_fault(WHERE, objective, method, show_value(made), wanted)
        return made

    return jax.eval_shape(run, *given.values())


def _is_pair(made: Any) -> bool:
    return isinstance(made, tuple) and len(made) == 2


def _is_initial(made: Any) -> bool:
    return _is_pair(made) and all(isinstance(x, Mapping) for x in made) and "model" in made[0]


def _is_batch(made: Any) -> bool:
    return isinstance(made, Mapping) and all(map(is_array, made.values()))


def _is_measured(made: Any) -> bool:
    if not (_is_pair(made) and isinstance(made[1], Mapping)):
        return False
    loss, metrics = made
    is_loss = is_array(loss) and loss.shape == () and np.issubdtype(loss.dtype, np.floating)
    return is_loss and all(map(is_scalar, metrics.values()))


def _is_like(made: Any, given: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (made, given)]
    if structures[0] != structures[1]:
        return False
    pairs = zip(jax.tree.leaves(made), jax.tree.leaves(given), strict=True)
    return all(np.shape(new) == old.shape for new, old in pairs)


def _shape(shape: tuple[int, ...], like: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, like.dtype)
