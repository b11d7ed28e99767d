"""What a run has trained, from a checkpoint of its workdir."""

import contextlib
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from big_align.errors import MissingCheckpoint, UserError
from big_align.runs import build
from big_align.training.state import describe_state
from big_align.types import Objective


def load_weights(
    config: Any, workdir: str, tokenizer: Any, step: int | None = None
) -> tuple[Objective, Mesh, dict, int]:
    """Loads what is evaluated from a checkpoint of a workdir.

    Args:
      config: the config of the run.
      workdir: where its checkpoints lie.
      tokenizer: built from the config; it has to be the one of the training.
      step: of the checkpoint; None for the newest.

    Returns:
      The objective, the mesh, `params` and `model_state` (their averages where they are kept), and
      the step of the checkpoint.

    Raises:
      CheckpointMismatch: the checkpoint belongs to another model or tokenizer.
      MissingCheckpoint: there is no checkpoint.
    """
    mesh = build.build_mesh(config)
    objective = build.build_objective(config, mesh, tokenizer)
    optimizer, _ = build.build_optimizer(config)
    averaged = config.average_decay is not None
    described, _ = describe_state(
        objective, optimizer, build.example_batch(config, tokenizer), mesh, averaged=averaged
    )
    names = ("average",) if averaged else ("params", "model_state")
    fields = {name: getattr(described, name) for name in names}
    checkpointer = build.build_checkpointer(config, workdir, read_only=True)
    with contextlib.closing(checkpointer):
        restored = checkpointer.restore(fields, {"tokenizer": tokenizer.fingerprint}, step)
        step = checkpointer.latest_step if step is None else step
    if restored is None:
        raise MissingCheckpoint(f"no complete checkpoint in {workdir}: train with it first")
    params, model_state = restored["average"] if averaged else (restored[k] for k in names)
    return objective, mesh, {"params": params, "model_state": model_state}, step


def load_table(
    config: Any, workdir: str, name: str, step: int | None = None
) -> Float[np.ndarray, "k d"]:
    """Loads the values of a table of rows, such as the class centers, without its padding.

    Args:
      config: the config of the run.
      workdir: where its checkpoints lie.
      name: of the table, "centers".
      step: of the checkpoint; None for the newest.

    Raises:
      UserError: the objective has no such table.
      MissingCheckpoint: there is no complete checkpoint.
    """
    mesh, tokenizer = build.build_mesh(config), build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    described, _ = describe_state(
        objective,
        build.build_optimizer(config)[0],
        build.example_batch(config, tokenizer),
        mesh,
        row_optimizer=build.build_row_optimizer(config),
    )
    if name not in described.tables:
        raise UserError(
            f"{workdir}: the objective {config.objective.name!r} has no table of {name}"
        )
    with contextlib.closing(build.build_checkpointer(config, workdir, read_only=True)) as saved:
        restored = saved.restore({"tables": described.tables}, {}, step)
    if restored is None:
        raise MissingCheckpoint(f"no complete checkpoint in {workdir}: train with it first")
    return np.asarray(restored["tables"][name].values)[: objective.table_sizes[name]]
