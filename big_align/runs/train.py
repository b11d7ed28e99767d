"""Training: build, restore, loop, evaluate, save. Nothing here is specific to an objective."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from clu import parameter_overview

from big_align import sharding
from big_align.devices.compilation import use_cache
from big_align.distributed import agreement
from big_align.evaluators.embedder import Embedder
from big_align.runs import build, check
from big_align.runs.evaluate import evaluate_all
from big_align.runs.initial_weights import (
    check_frozen,
    read_initial_weights,
    start_tables,
)
from big_align.runs.program import Program, build_program
from big_align.training.goodput import Clock, RunTime
from big_align.training.loop import Loop, Schedule
from big_align.training.profiling import Profiler
from big_align.training.state import TrainState, replace_weights
from big_align.training.stopping import StopSignals
from big_align.types import Batch


def _start(config: Any, program: Program) -> TrainState:
    """Makes the state of step 0, from earlier weights where the config names some."""
    shapes = program.state.weight_shapes
    weights, report = read_initial_weights(shapes, config.init)
    check_frozen(config.optimizer.get("frozen") or (), shapes, weights)
    if report and jax.process_index() == 0:
        print("\n".join(report))
    state = replace_weights(program.create(), weights)
    sizes = program.objective.table_sizes
    return state.replace(tables=start_tables(config.init, state.tables, sizes))


def _leave_description(workdir: str, config: Any, state: TrainState) -> None:
    """Leaves the config and the table of parameters in the workdir."""
    if jax.process_index() != 0:
        return
    folder = pathlib.Path(workdir)
    (folder / "config.json").write_text(config.to_json_best_effort(indent=2) + "\n")
    table = parameter_overview.get_parameter_overview(state.params, include_stats=False)
    (folder / "parameters.txt").write_text(table + "\n")
    parts = {k: sum(x.size for x in jax.tree.leaves(v)) for k, v in _parts(state.params).items()}
    print(f"{sum(parts.values()):,} parameters; each one is listed in {folder}/parameters.txt")
    for name, count in parts.items():
        print(f"  {name:<24} {count:>14,}")


def _parts(params: Any) -> dict[str, Any]:
    """The parameters two levels deep: one entry for each tower and projection."""
    parts = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            parts |= {f"{name}/{key}": inner for key, inner in value.items()}
        else:
            parts[name] = value
    return parts


def run(
    config: Any, workdir: str, profile: tuple[int, int] | None = None
) -> dict[str, float]:
    """Trains as the config says, continuing where the workdir stands.

    Args:
      config: an `ml_collections.ConfigDict`; configs/common.py has every field.
      workdir: where metrics, events and checkpoints lie.
      profile: the first and the last step to trace.

    Returns:
      The numbers of the last evaluation, empty if none was due.

    Raises:
      ConfigError: a field of the config is wrong.
      CheckpointMismatch: the workdir belongs to another model, or another order of examples.
      BrokenDataError: too many examples are broken.
      NotFiniteError: the loss is NaN or infinite.
      Stopped: it was told to stop, and has saved.
    """
    clock = Clock()
    check.check_config(config)
    use_cache(config.compilation_cache)
    mesh = build.build_mesh(config)
    tokenizer = build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    evaluators = build.build_evaluators(config, tokenizer)
    record = build.describe_run(config, tokenizer)
    rows = sharding.process_rows(mesh, config.batch_size)
    check.check_precomputed(config, objective)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        loader = stack.enter_context(build.build_train_loader(config, tokenizer, rows))
        agreement.check_data(loader.shards)
        # Faults of the data are reported before there is a workdir.
        first_batch = sharding.place_batch(loader.batch(0), mesh)
        time = RunTime(workdir, clock)
        stack.callback(time.report)
        checkpointer = stack.enter_context(
            contextlib.closing(build.build_checkpointer(config, workdir, parts=loader.saved))
        )
        stack.callback(clock.begin, "saving")  # Closing waits for what is being written.
        example = build.example_batch(config, tokenizer)
        program = build_program(config, mesh, objective, example)
        with clock.phase("restoring"):
            state = checkpointer.restore(program.state, record)
        state = state or _start(config, program)
        _leave_description(workdir, config, state)
        profiler = Profiler(workdir, profile, int(state.step), config.total_steps)
        stack.callback(profiler.close)
        with clock.phase("compiling"):
            step, step_flops = _compile(program, first_batch)
        embedder = Embedder(objective, mesh, config.evaluate_batch_size)
        every = config.log_every, config.evaluate_every, config.checkpoint.every
        loop = Loop(
            workdir,
            Schedule(config.total_steps, *every),
            checkpointer=checkpointer,
            evaluate=lambda state: evaluate_all(evaluators, embedder.use(*state.evaluated)),
            learning_rate=program.learning_rate,
            record=record,
            epochs=loader.epochs,
            signals=signals,
            batch_size=config.batch_size,
            step_flops=step_flops,
            time=time,
            profiler=profiler,
        )
        batches = (
            sharding.place_batch(batch, mesh) for batch in loader.iterate(int(state.step))
        )
        return loop.run(state, batches, step)


def _compile(program: Program, batch: Batch) -> tuple[jax.stages.Compiled, float]:
    """Compiles the step and tells with what; returns it and the model FLOPs of one device."""
    if program.options and jax.process_index() == 0:
        shown = ", ".join(f"{name}={value}" for name, value in program.options.items())
        print(f"compiler options: {shown}")
    return program.compile(batch), program.count_flops(batch) / program.mesh.size
