"""What a run has trained, from the newest checkpoint of its workdir."""

import contextlib
from typing import Any

from jax.sharding import Mesh

from big_align import build
from big_align.errors import MissingCheckpoint
from big_align.state import describe_state
from big_align.types import Objective


def load_weights(config: Any, workdir: str, tokenizer: Any) -> tuple[Objective, Mesh, dict, int]:
    """Loads what is evaluated from the newest checkpoint of a workdir.

    Args:
      config: the config of the run.
      workdir: where its checkpoints lie.
      tokenizer: built from the config; it has to be the one of the training.

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
        restored = checkpointer.restore(fields, {"tokenizer": tokenizer.fingerprint})
        step = checkpointer.latest_step
    if restored is None:
        raise MissingCheckpoint(f"no complete checkpoint in {workdir}: train with it first")
    params, model_state = restored["average"] if averaged else (restored[k] for k in names)
    return objective, mesh, {"params": params, "model_state": model_state}, step
