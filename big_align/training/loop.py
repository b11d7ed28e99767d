"""The loop of a run: steps, and what is due between them. It knows no objective and no config."""

import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax

from big_align.distributed import processes
from big_align.errors import NotFiniteError, Stopped
from big_align.training.checkpoint import Checkpointer
from big_align.training.goodput import RunTime
from big_align.training.logs import MetricWriter, Progress, format_table
from big_align.training.profiling import Profiler
from big_align.training.state import TrainState
from big_align.training.stopping import StopSignals
from big_align.training.watchdog import Watchdog
from big_align.types import Batch, Metrics


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


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When what is due, in steps.

    Attributes:
      total_steps: the last step.
      log_every: how often metrics are written.
      evaluate_every: how often the evaluators run; they also do after the last step.
      save_every: how often the state is saved; it also is after the last step.
    """

    total_steps: int
    log_every: int
    evaluate_every: int
    save_every: int

    def evaluates(self, step: int) -> bool:
        """Tells whether the evaluators run after a step."""
        return step == self.total_steps or step % self.evaluate_every == 0

    def saves(self, step: int) -> bool:
        """Tells whether the state is saved after a step."""
        return step == self.total_steps or step % self.save_every == 0


@dataclasses.dataclass
class Loop:
    """Steps, and what is due between them: logging, evaluating, saving, stopping.

    Attributes:
      workdir: where metrics lie.
      schedule: when what is due.
      checkpointer: saves the state.
      evaluate: measures a state.
      learning_rate: step -> learning rate, logged.
      record: what a checkpoint records about the run.
      epochs: step -> epochs of the data, logged by name.
      signals: tells whether this process has been asked to stop.
      batch_size: examples of a step.
      step_flops: model FLOPs of a step on one device.
      time: where it goes.
      profiler: traces some steps.
    """

    workdir: str
    schedule: Schedule
    checkpointer: Checkpointer
    evaluate: Callable[[TrainState], dict[str, float]]
    learning_rate: optax.Schedule
    record: dict[str, Any]
    epochs: Callable[[int], dict[str, float]]
    signals: StopSignals
    batch_size: int
    step_flops: float
    time: RunTime
    profiler: Profiler

    def run(
        self,
        state: TrainState,
        batches: Iterator[Batch],
        train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    ) -> dict[str, float]:
        """Trains to the last step.

        Args:
          state: of the step that is done; its memory may be reused.
          batches: those of the next steps, in order.
          train_step: compiled.

        Returns:
          The numbers of the last evaluation.

        Raises:
          Stopped: it was told to stop, and what was trained is being saved.
        """
        start, total, results = int(state.step), self.schedule.total_steps, {}
        clock = self.time.clock
        progress = Progress(start, total, self.batch_size, self.step_flops, clock)
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
                evaluating, saving = self.schedule.evaluates(step), self.schedule.saves(step)
                if evaluating or saving or stopping:
                    self._log(queue.flush())
                if evaluating:
                    with clock.phase("evaluating"):
                        results = self._evaluate(state)
                    self._report(step, results)
                if saving or stopping:
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
            if step % self.schedule.log_every:
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
