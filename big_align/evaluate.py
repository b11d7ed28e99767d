"""Evaluation of a model, during training and from a checkpoint."""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from big_align import build
from big_align.embedding import Embedder
from big_align.errors import ConfigError
from big_align.evaluators.retrieval import Retrieval
from big_align.logs import format_table
from big_align.registry import suggest
from big_align.state import describe_state
from big_align.types import Evaluator, Objective


def evaluate_all(evaluators: Mapping[str, Evaluator], embedder: Embedder) -> dict[str, float]:
    """Runs every evaluator and returns its numbers by `evaluator/name`."""
    return {
        f"{name}/{key}": value
        for name, evaluate in evaluators.items()
        for key, value in evaluate(embedder).items()
    }


def choose_retrieval(
    evaluators: Mapping[str, Any], tokenizer: Any, name: str | None = None
) -> Retrieval:
    """Returns the retrieval over the examples of an evaluator, for showing what a model finds.

    Args:
      evaluators: by their names in the config.
      tokenizer: the one that the model was trained with.
      name: of an evaluator of any kind whose examples have captions; by default the first
        retrieval or, where there is none, the first evaluator.

    Raises:
      ConfigError: there is no such evaluator.
    """
    first = [n for n, evaluator in evaluators.items() if isinstance(evaluator, Retrieval)]
    name = name or next(iter([*first, *evaluators]), "")
    if name not in evaluators:
        raise ConfigError(
            f"config.evaluators has no {name!r}{suggest(name, evaluators)}; "
            f"it has: {', '.join(evaluators) or 'none'}"
        )
    chosen = evaluators[name]
    if isinstance(chosen, Retrieval):
        return chosen
    return Retrieval(chosen.source, chosen.transform, tokenizer)


def load_weights(config: Any, workdir: str, tokenizer: Any) -> tuple[Objective, Mesh, dict, int]:
    """Loads what is evaluated from the newest checkpoint of a workdir.

    Args:
      config: the config of the run.
      workdir: where its checkpoints lie.
      tokenizer: built from the config; it has to be the one of the training.

    Returns:
      The objective, the mesh, `params` (the average where one is kept) and `model_state`, and the
      step of the checkpoint.

    Raises:
      CheckpointMismatch: the checkpoint belongs to another model or tokenizer.
      FileNotFoundError: there is no checkpoint.
    """
    mesh = build.build_mesh(config)
    objective = build.build_objective(config, mesh)
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
        raise FileNotFoundError(f"no complete checkpoint in {workdir}: train with it first")
    params, model_state = restored["average"] if averaged else restored.values()
    return objective, mesh, {"params": params, "model_state": model_state}, step


def load_embedder(config: Any, workdir: str, tokenizer: Any) -> tuple[Embedder, int]:
    """Loads the newest checkpoint of a workdir, ready to embed.

    Args and errors are those of `load_weights`.

    Returns:
      The embedder, and the step of the checkpoint.
    """
    objective, mesh, weights, step = load_weights(config, workdir, tokenizer)
    embedder = Embedder(objective, mesh, config.evaluate_batch_size)
    return embedder.use(**weights), step


def run(config: Any, workdir: str) -> dict[str, float]:
    """Evaluates the newest checkpoint of a workdir and prints a table.

    Args:
      config: the config of the run; its evaluators say what is measured.
      workdir: where the checkpoints lie.

    Returns:
      Numbers by `evaluator/name`.

    Raises:
      ConfigError: a field of the config is wrong.
      CheckpointMismatch: the checkpoint belongs to another model or tokenizer.
      FileNotFoundError: there is no checkpoint.
    """
    build.check_config(config)
    tokenizer = build.build_tokenizer(config)
    embedder, step = load_embedder(config, workdir, tokenizer)
    results = evaluate_all(build.build_evaluators(config, tokenizer), embedder)
    if jax.process_index() == 0:
        print(f"{workdir} at step {step}\n{format_table(results)}")
    return results
