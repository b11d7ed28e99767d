"""Evaluation of a model, during training and from a checkpoint."""

from collections.abc import Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from big_align.devices.compilation import use_cache
from big_align.errors import ConfigError, MissingCheckpoint, WeightsMismatch, suggest
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.retrieval import Retrieval
from big_align.runs import build, check
from big_align.runs.initial_weights import read_initial_weights
from big_align.runs.restore import load_weights
from big_align.training.logs import format_table
from big_align.training.state import describe_state, replace_weights
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


def load_initial_weights(config: Any, tokenizer: Any) -> tuple[Objective, Mesh, dict, int]:
    """Loads what `config.init` names, in place of a checkpoint.

    Raises:
      WeightsMismatch: the weights do not fit the model, or leave some of it without any.
    """
    mesh = build.build_mesh(config)
    objective = build.build_objective(config, mesh, tokenizer)
    batch = build.example_batch(config, tokenizer)
    described, create = describe_state(objective, optax.identity(), batch, mesh)
    weights, report = read_initial_weights(described.weight_shapes, config.init)
    fresh = sorted(described.weight_shapes.keys() - weights.keys())
    if fresh:
        raise WeightsMismatch(
            f"the workdir has no checkpoint, and config.init leaves {len(fresh)} arrays of the "
            f"model without weights: {', '.join(fresh[:6])}{' ...' if len(fresh) > 6 else ''}"
        )
    if jax.process_index() == 0:
        print("\n".join(report))
    state = replace_weights(create(), weights)
    return objective, mesh, {"params": state.params, "model_state": state.model_state}, 0


def load_embedder(config: Any, workdir: str, tokenizer: Any) -> tuple[Embedder, int]:
    """Loads the newest checkpoint of a workdir, ready to embed.

    Without a checkpoint it takes the weights that `config.init` names, if it names any: so a model
    that was exported, or comes from elsewhere, is evaluated.

    Args and errors are those of `restore.load_weights` and `load_initial_weights`.

    Returns:
      The embedder, and the step of the checkpoint; 0 for weights of `config.init`.
    """
    try:
        objective, mesh, weights, step = load_weights(config, workdir, tokenizer)
    except MissingCheckpoint:
        if not any(config.init.values()):
            raise
        objective, mesh, weights, step = load_initial_weights(config, tokenizer)
    embedder = Embedder(objective, mesh, config.evaluate_batch_size)
    return embedder.use(**weights), step


def run(config: Any, workdir: str) -> dict[str, float]:
    """Evaluates the newest checkpoint of a workdir and prints a table.

    Args:
      config: the config of the run; its evaluators say what is measured, and its `init` which
        weights where there is no checkpoint.
      workdir: where the checkpoints lie.

    Returns:
      Numbers by `evaluator/name`.

    Raises:
      ConfigError: a field of the config is wrong.
      CheckpointMismatch: the checkpoint belongs to another model or tokenizer.
      WeightsMismatch: the weights of `config.init` do not fit or are not all.
      MissingCheckpoint: there is no checkpoint, and `config.init` names nothing.
    """
    check.check_config(config)
    use_cache(config.compilation_cache)
    tokenizer = build.build_tokenizer(config)
    embedder, step = load_embedder(config, workdir, tokenizer)
    results = evaluate_all(build.build_evaluators(config, tokenizer), embedder)
    if jax.process_index() == 0:
        where = f"{workdir} at step {step}" if step else "the weights of config.init"
        print(f"{where}\n{format_table(results)}")
    return results
