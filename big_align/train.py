"""Training: build, restore, loop, evaluate, save. Nothing here is specific to an objective."""

import contextlib
import math
import pathlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import optax
from clu import parameter_overview

from big_align import agreement, build, config_check, processes, sharding
from big_align.checkpoint import Checkpointer
from big_align.compilation import use_cache
from big_align.embedding import Embedder
from big_align.errors import NotFiniteError, Stopped
from big_align.evaluate import evaluate_all
from big_align.goodput import Clock, RunTime
from big_align.interop.initialise import check_frozen, read_initial_weights
from big_align.logs import MetricWriter, Progress, format_table
from big_align.profiling import Profiler
from big_align.program import Program, build_program
from big_align.state import TrainState, replace_weights
from big_align.stopping import StopSignals
from big_align.types import Batch, Metrics
from big_align.watchdog import Watchdog


class MetricQueue:
    """Keeps the host at most `depth` steps ahead of the device, and watches for NaN and infinity.

    The loss is that of the parameters before a step and their norm that after it: where both are
    finite the state may be saved.

    Args:
      depth: steps whose metrics may still be in the making.
      last_good: gives the step of the newest checkpoint, None if there is none.
    """

    WATCHED = {"loss": "the loss", "parameter_norm": "the norm of the parameters"}

    def __init__(self, depth: int, last_good: Callable[[], int | None]):
        self._depth = depth
        self._last_good = last_good
        self._pending: deque[tuple[int, Metrics]] = deque()

    def push(self, step: int, metrics: Metrics) -> Iterator[tuple[int, dict[str, float]]]:
        """Adds a step's metrics; yields those that have left the queue."""
        self._pending.append((step, metrics))
        return self._pop_until(self._depth)

    def flush(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields everything; afterwards the state is known to be finite."""
        return self._pop_until(0)

    def _pop_until(self, length: int) -> Iterator[tuple[int, dict[str, float]]]:
        while len(self._pending) > length:
            step, metrics = self._pending.popleft()
            scalars = {k: float(v) for k, v in jax.device_get(metrics).items()}
            for name, what in self.WATCHED.items():
                if not math.isfinite(scalars[name]):
                    raise NotFiniteError(self._explain(step, what, scalars[name]))
            yield step, scalars

    def _explain(self, step: int, what: str, value: float) -> str:
        saved = self._last_good()
        good = "none yet" if saved is None else f"that of step {saved}"
        return (
            f"{what} is {value} at step {step}; the last good checkpoint is {good}. Lower "
            f"config.schedule.learning_rate or set config.optimizer.clip_norm, and run the same "
            f"command again."
        )


def _start(config: Any, program: Program) -> TrainState:
    """Makes the state of step 0, from earlier weights where the config names some."""
    shapes = program.state.weight_shapes
    weights, report = read_initial_weights(shapes, config.init)
    check_frozen(config.optimizer.get("frozen") or (), shapes, weights)
    if report and jax.process_index() == 0:
        print("\n".join(report))
    state = replace_weights(program.create(), weights)
    return state.replace(tables=build.start_tables(config, state.tables))


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


class Loop:
    """Steps, and what is due between them: logging, evaluating, saving, stopping.

    Args:
      config: the run's config.
      workdir: where metrics lie.
      checkpointer: saves the state.
      evaluate: measures a state.
      learning_rate: step -> learning rate, logged.
      record: what a checkpoint is told about the run.
      epochs: step -> how often the data have been gone through, logged by name.
      signals: tells whether this process has been asked to stop.
      step_flops: model FLOPs of a step on one device.
      time: where it goes.
      profiler: traces some steps.
    """

    def __init__(
        self,
        config: Any,
        workdir: str,
        *,
        checkpointer: Checkpointer,
        evaluate: Callable[[TrainState], dict[str, float]],
        learning_rate: optax.Schedule,
        record: dict[str, Any],
        epochs: Callable[[int], dict[str, float]],
        signals: StopSignals,
        step_flops: float,
        time: RunTime,
        profiler: Profiler,
    ):
        self.config = config
        self.workdir = workdir
        self.checkpointer = checkpointer
        self.evaluate = evaluate
        self.learning_rate = learning_rate
        self.record = record
        self.epochs = epochs
        self.signals = signals
        self.step_flops = step_flops
        self.time = time
        self.profiler = profiler

    def run(
        self, state: TrainState, batches: Iterator[Batch], train_step: jax.stages.Compiled
    ) -> dict[str, float]:
        """Trains to the last step.

        Returns:
          The numbers of the last evaluation.

        Raises:
          Stopped: it was told to stop, and what was trained is being saved.
        """
        config, results = self.config, {}
        start, total = int(state.step), config.total_steps
        clock = self.time.clock
        progress = Progress(start, total, config.batch_size, self.step_flops, clock)
        with (
            contextlib.closing(MetricWriter(self.workdir, start)) as self.writer,
            contextlib.closing(progress) as self.progress,
            contextlib.closing(self._make_watchdog()) as watchdog,
        ):
            queue = MetricQueue(depth=2, last_good=lambda: self.checkpointer.latest_step)
            for step in range(start + 1, total + 1):
                self.time.begin_step(step)
                with watchdog.time_step(step):
                    batch = self.progress.wait_for(batches)
                    state, metrics = self.profiler.run_step(step, train_step, state, batch)
                    self._log(queue.push(step, metrics))
                self.progress.advance()
                stopping = self.signals.received or self.checkpointer.preempted(step)
                evaluating = step == total or step % config.evaluate_every == 0
                if evaluating or stopping or step % config.checkpoint.every == 0:
                    self._log(queue.flush())
                if evaluating:
                    with clock.phase("evaluating"):
                        results = self._evaluate(state)
                    self._report(step, results)
                if stopping or step == total or step % config.checkpoint.every == 0:
                    with clock.phase("saving"):
                        self.checkpointer.save(state, self.record)
                if stopping and step < total:
                    raise Stopped(
                        f"stopped on request after step {step}; the same command continues"
                    )
        return results

    def _make_watchdog(self) -> Watchdog:
        first = jax.process_index() == 0
        return Watchdog(self.progress.say, processes.activities if first else None)

    def _log(self, finished: Iterator[tuple[int, dict[str, float]]]) -> None:
        for step, scalars in finished:
            if step % self.config.log_every:
                continue
            scalars |= self.progress.rates()
            scalars["learning_rate"] = float(self.learning_rate(step - 1))
            scalars |= self.epochs(step) | self.time.metrics()
            self.writer.write(step, scalars)
            self.time.save()
            self.progress.show(scalars)

    def _evaluate(self, state: TrainState) -> dict[str, float]:
        try:
            return self.evaluate(state)
        except Exception:
            # What was trained up to here is worth keeping, whatever is wrong with measuring it.
            if jax.process_count() == 1:  # the others may be well, and would not save with this one
                self.checkpointer.save(state, self.record)
            raise

    def _report(self, step: int, results: dict[str, float]) -> None:
        if results:
            self.writer.write(step, results)
            self.progress.say(f"step {step}\n{format_table(results)}")


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
    config_check.check_config(config)
    use_cache(config.compilation_cache)
    mesh = build.build_mesh(config)
    tokenizer = build.build_tokenizer(config)
    objective = build.build_objective(config, mesh, tokenizer)
    evaluators = build.build_evaluators(config, tokenizer)
    record = build.describe_run(config, tokenizer)
    rows = sharding.process_rows(mesh, config.batch_size)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        loader = stack.enter_context(build.build_train_loader(config, tokenizer, rows))
        agreement.check_data(loader.shards)
        # What is wrong with the data is told before there is a workdir.
        first_batch = sharding.place_batch(loader.batch(0), mesh)
        time = RunTime(workdir, clock)
        stack.callback(time.report)
        checkpointer = stack.enter_context(
            contextlib.closing(build.build_checkpointer(config, workdir))
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
        loop = Loop(
            config,
            workdir,
            checkpointer=checkpointer,
            evaluate=lambda state: evaluate_all(evaluators, embedder.use(*state.evaluated)),
            learning_rate=program.learning_rate,
            record=record,
            epochs=loader.epochs,
            signals=signals,
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
