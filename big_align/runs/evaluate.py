"""Evaluation of a model, during training and from a checkpoint."""

import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from big_align.core.errors import (
    BrokenDataError,
    ConfigError,
    MissingCheckpoint,
    WeightsMismatch,
    is_scalar,
    make_fault,
    show_value,
    suggest,
    tell_in_a_line,
)
from big_align.core.types import Objective
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.evaluator import Evaluator
from big_align.evaluators.exhibits.exhibit import Show
from big_align.evaluators.retrieval import Retrieval
from big_align.pages.run_report.report import refresh_report
from big_align.parallel.devices.compilation import use_cache
from big_align.parallel.distributed import agreement
from big_align.runs import build, check
from big_align.runs.initial_weights import OPTIMIZER, list_fresh, read_initial_weights, settle
from big_align.runs.restore import load_weights
from big_align.training.logs.directions import FIELD, collect_said
from big_align.training.logs.evaluations import EVALUATION, FILE, EvaluationLog
from big_align.training.logs.metrics import format_table
from big_align.training.saving.retention import Which
from big_align.training.saving.step_folders import find_folder
from big_align.training.state import describe_state, replace_weights
from big_align.training.stopping import StopSignals

NUMBERS = "a dictionary of numbers, as in {'accuracy': 0.5}"
"""What an evaluator returns."""


def evaluate_all(
    evaluators: Mapping[str, Evaluator],
    embedder: Embedder,
    show: Callable[[str, Show], None] | None = None,
) -> dict[str, float]:
    """Runs every evaluator and returns its numbers by `evaluator/name`.

    Args:
      evaluators: evaluators by name.
      embedder: embedder of the model.
      show: called with the name of an evaluator and the function that makes its pictures, if it has
        one.

    Raises:
      BrokenDataError: too many examples of an evaluator are broken; the message names it.
    """
    results = {}
    for name, evaluate in evaluators.items():
        try:
            if show is not None and hasattr(evaluate, "measure"):
                numbers, pictures = evaluate.measure(embedder)
                show(name, pictures)
            else:
                numbers = evaluate(embedder)
            _check_numbers(evaluate, numbers, f"config.evaluators.{name}")
        except BrokenDataError as error:
            where = f"config.evaluators.{name}"
            message = f"{where}: {error}; --{where}.max_broken_fraction=... sets it"
            raise BrokenDataError(message) from error
        results |= {f"{name}/{key}": float(value) for key, value in numbers.items()}
    return results


def _check_numbers(evaluate: Evaluator, numbers: Any, where: str) -> None:
    """Raises a ConfigError if an evaluator has returned something else than numbers by name."""
    if not isinstance(numbers, Mapping):
        raise make_fault(where, evaluate, "__call__", show_value(numbers), NUMBERS)
    if wrong := {key: value for key, value in numbers.items() if not is_scalar(value)}:
        raise make_fault(where, evaluate, "__call__", show_value(wrong), NUMBERS)


def describe_evaluators(config: Any, evaluators: Mapping[str, Evaluator]) -> dict[str, Any]:
    """Returns each evaluator's kind, sources, and numbers of which lower is better, for JSON."""
    described = {}
    for name, node in config.evaluators.items():
        parts = {k: v.to_dict() for k, v in node.items() if isinstance(v, ConfigDict)}
        sources = {k: {f: x for f, x in v.items() if x is not None} for k, v in parts.items()}
        described[name] = {"name": node.name, **sources}
    return {"evaluators": described, FIELD: collect_said(evaluators)}


def choose_retrieval(config: Any, tokenizer: Any, name: str | None = None) -> Retrieval:
    """Returns retrieval over the examples of an evaluator, for showing what a model finds.

    Args:
      config: config of the run.
      tokenizer: the one that the model was trained with.
      name: name of an evaluator of any kind whose examples have captions; by default the first
        retrieval evaluator or, if there is none, the first evaluator.

    Raises:
      ConfigError: there is no such evaluator.
    """
    known = config.evaluators
    name = name or next(iter([*build.find_evaluators(config, Retrieval), *known]), "")
    if name not in known:
        raise ConfigError(
            f"config.evaluators has no {name!r}{suggest(name, known)}; "
            f"it has: {', '.join(known) or 'none'}"
        )
    chosen: Any = build.build_evaluator(config, name, tokenizer)
    if isinstance(chosen, Retrieval):
        return chosen
    if not hasattr(chosen, "source") or getattr(chosen, "transform", None) is None:
        raise ConfigError(
            f"config.evaluators.{name} ({type(chosen).__name__}) has no examples of its own to "
            "show: name an evaluator of retrieval"
        )
    return Retrieval(chosen.source, chosen.transform, tokenizer)


def load_initial_weights(config: Any, tokenizer: Any) -> tuple[Objective, Mesh, dict, int]:
    """Loads the weights that `config.init` names, as `restore.load_weights` does; at step 0."""
    mesh = build.build_mesh(config)
    objective = build.build_objective(config, mesh, tokenizer)
    batch = build.example_batch(config, tokenizer)
    described, create = describe_state(objective, optax.identity(), batch, mesh)
    weights, report = read_initial_weights(
        described.weight_shapes, config.init, getattr(objective, "model", None), tokenizer
    )
    fresh = list_fresh(described.weight_shapes, weights)
    if fresh:
        raise WeightsMismatch(
            f"the workdir has no checkpoint, and config.init leaves {len(fresh)} arrays of the "
            f"model without weights: {', '.join(fresh[:6])}{' ...' if len(fresh) > 6 else ''}"
        )
    if jax.process_index() == 0:
        print("\n".join(report))
    state = replace_weights(create(), weights)
    return objective, mesh, {"params": state.params, "model_state": state.model_state}, 0


def load_embedder(
    config: Any, workdir: str, tokenizer: Any, step: Which = None
) -> tuple[Embedder, int]:
    """Loads a checkpoint of a workdir, by default the newest, ready to embed.

    If there is no checkpoint, it uses the weights that `config.init` names, if any; so a model that
    was exported, or comes from elsewhere, can be evaluated.

    The errors are those of `restore.load_weights`, and a WeightsMismatch if `config.init` leaves
    arrays without weights.

    Returns:
      The embedder, and the step of the checkpoint; 0 for weights of `config.init`.
    """
    try:
        objective, mesh, weights, step = load_weights(config, workdir, tokenizer, step)
    except MissingCheckpoint:
        named = any(path for part, path in config.init.items() if part != OPTIMIZER)
        if step is not None or not named:
            raise
        objective, mesh, weights, step = load_initial_weights(config, tokenizer)
    embedder = Embedder(objective, mesh, config.evaluate_batch_size)
    return embedder.use(**weights), step


def run(config: Any, workdir: str, step: Which = None) -> dict[str, float]:
    """Evaluates a checkpoint of a workdir, prints a table and stores it in `evaluations.jsonl`.

    The report of the run is rewritten with the new results. Where nothing can be written, a line
    says so, and the numbers are printed all the same.

    The evaluators of the config determine what is measured, and its `init` the weights if there is
    no checkpoint. Returns numbers by `evaluator/name`.
    """
    config = settle(config, workdir)
    check.check_config(config, training=False)
    use_cache(config.compilation_cache)
    tokenizer = build.build_tokenizer(config)
    agreement.check_inputs("tokenizer", lambda: {"fingerprint of tokenizer": tokenizer.fingerprint})
    embedder, step = load_embedder(config, workdir, tokenizer, step)
    evaluators, start = build.build_evaluators(config, tokenizer), time.monotonic()
    with StopSignals() as signals, signals.interrupting("stopped on request; nothing is written"):
        results = evaluate_all(evaluators, embedder)
    seconds = time.monotonic() - start
    if jax.process_index() == 0:
        where = f"{workdir} at step {step}" if step else "the weights of config.init"
        print(f"{where}\n{format_table(results)}", flush=True)
    about, checkpoint = describe_evaluators(config, evaluators), None
    if step:
        checkpoint = find_folder(workdir, config.checkpoint.get("folder")) / str(step)
    else:
        about["init"] = {part: path for part, path in config.init.items() if path}
    try:
        log = EvaluationLog(workdir, EVALUATION, about)
        log.write(step or None, results, seconds, checkpoint)
    except OSError as error:  # a folder of someone else, a full disk: the numbers are there
        place, reason = pathlib.Path(workdir, FILE), error.strerror or tell_in_a_line(error)
        print(f"warning: {place}: the evaluation is not recorded ({reason})", file=sys.stderr)
    refresh_report(workdir)
    return results
