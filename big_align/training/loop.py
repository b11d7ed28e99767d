"""The loop of a run: steps, and what is due between them. It knows no objective and no config."""

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import optax

from big_align.core.errors import Stopped
from big_align.core.types import Batch, Metrics
from big_align.parallel.distributed import agreement, processes
from big_align.training.health.rewinds import HEALTH, Health
from big_align.training.logs.evaluations import EvaluationLog
from big_align.training.logs.goodput import RunTime
from big_align.training.logs.metrics import MetricWriter, Progress, format_table
from big_align.training.logs.trackers import Pictures
from big_align.training.profiling import Profiler
from big_align.training.saving.checkpoint import Checkpointer
from big_align.training.saving.retention import Numbers
from big_align.training.state import TrainState
from big_align.training.stopping import StopSignals
from big_align.training.watchdog import Watchdog


class MetricQueue:
    """Keeps the host at most `depth` steps ahead of the device."""

    def __init__(self, depth: int):
        self._depth = depth
        self._pending: deque[tuple[int, Metrics]] = deque()

    def push(self, step: int, metrics: Metrics) -> Iterator[tuple[int, dict[str, float]]]:
        """Adds a step's metrics; yields those that have left the queue."""
        self._pending.append((step, metrics))
        return self._pop_until(self._depth)

    def flush(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields everything."""
        return self._pop_until(0)

    def _pop_until(self, length: int) -> Iterator[tuple[int, dict[str, float]]]:
        while len(self._pending) > length:
            step, metrics = self._pending.popleft()
            yield step, {k: float(v) for k, v in jax.device_get(metrics).items()}


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When things are due, in steps."""

    total_steps: int
    log_every: int
    evaluate_every: int
    save_every: int

    def evaluates(self, step: int) -> bool:
        """Returns whether the evaluators run after a step."""
        return step == self.total_steps or step % self.evaluate_every == 0

    def saves(self, step: int) -> bool:
        """Returns whether the state is saved after a step."""
        return step == self.total_steps or step % self.save_every == 0


@dataclasses.dataclass
class Loop:
    """Runs steps, and what is due between them: logging, evaluating, saving, stopping."""

    writer: MetricWriter  # closed after the run, as is the bar
    progress: Progress
    schedule: Schedule
    checkpointer: Checkpointer
    evaluate: Callable[[TrainState], dict[str, float]]
    evaluations: EvaluationLog
    health: Health
    pictures: Callable[[int], Pictures]  # of a step's evaluation
    learning_rate: optax.Schedule
    record: dict[str, Any]  # what a checkpoint records about the run
    epochs: Callable[[int], dict[str, float]]  # of the data at a step, by logged name
    signals: StopSignals
    time: RunTime
    profiler: Profiler
    queue: MetricQueue = dataclasses.field(init=False, default_factory=lambda: MetricQueue(depth=2))

    def run(
        self,
        state: TrainState,
        batches: Iterator[Batch],
        train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    ) -> dict[str, float]:
        """Trains to the last step; returns the numbers of the last evaluation.

        The memory of `state`, which is that of the last completed step, may be reused. It raises
        Stopped on request, once what was trained is saved; DivergedError; and Rewound, after which
        the run goes on from its last checkpoint with other data.
        """
        start, total, results = int(state.step), self.schedule.total_steps, {}
        clock, is_first = self.time.clock, jax.process_index() == 0
        activities = processes.activities if is_first else None
        self.evaluations.drop_after(start)
        with (
            contextlib.closing(self.writer),
            contextlib.closing(self.progress),
            contextlib.closing(Watchdog(self.progress.say, activities)) as watchdog,
        ):
            if start and self.schedule.evaluates(start) and not self.evaluations.has(start):
                results = self._evaluate(state, True)[0]  # it was interrupted
                self.checkpointer.note(start, results)
            for step in range(start + 1, total + 1):
                self.time.begin_step(step)
                with watchdog.time_step(step):
                    batch = self.progress.wait_for(batches)
                    state, metrics = self.profiler.run_step(step, train_step, state, batch)
                    self.progress.advance()
                    self._log(state, self.queue.push(step, metrics))
                stopping = self.signals.received or self.checkpointer.preempted()
                evaluating, saving = self.schedule.evaluates(step), self.schedule.saves(step)
                if evaluating or saving or stopping:
                    self._log(state, self.queue.flush())
                if evaluating:
                    results, best = self._evaluate(state, saving or stopping)
                    saving |= best
                if saving or stopping:
                    with clock.phase("saving"):
                        ending = stopping or step == total
                        self._save(state, results if evaluating else None, last=ending)
                if stopping and step < total:
                    raise Stopped(
                        f"stopped on request after step {step}; the same command continues"
                    )
        return results

    def _save(self, state: TrainState, numbers: Numbers | None, last: bool) -> None:
        """Saves a state, after whatever covers the steps up to it."""
        self.checkpointer.settle()  # what is kept in the workdir is that of complete saves
        with self._saved_if_not_logged(state):
            self.writer.flush()
            self.health.save(int(state.step))
        self._write_checkpoint(state, numbers, last)

    def _write_checkpoint(self, state: TrainState, numbers: Numbers | None, last: bool) -> None:
        record = {**self.record, HEALTH: self.health.state()}
        self.checkpointer.save(state, record, numbers, last=last)

    @contextlib.contextmanager
    def _saved_if_not_logged(self, state: TrainState) -> Iterator[None]:
        """Saves a state if its logs cannot be written: checkpoints may be on another disk."""
        try:
            yield
        except OSError as error:
            if jax.process_count() == 1:  # others may be fine, and would not join the save
                self.progress.say(f"{error}; step {int(state.step)} is saved before the run ends")
                for step, scalars in self.queue.flush():
                    self.health.check(step, scalars)
                    with contextlib.suppress(OSError):  # if there is space again, closing writes it
                        self._write(step, scalars)
                self._write_checkpoint(state, None, last=True)
            raise

    def _log(self, state: TrainState, finished: Iterator[tuple[int, dict[str, float]]]) -> None:
        for step, scalars in finished:
            self.progress.finish()
            self.health.check(step, scalars)  # so everything saved later is known to be finite
            with self._saved_if_not_logged(state):
                self._write(step, scalars)

    def _write(self, step: int, scalars: dict[str, float]) -> None:
        """Logs the numbers of a step if it is one of those to log."""
        if step % self.schedule.log_every:
            return
        scalars |= self.progress.rates()
        scalars["learning_rate"] = float(self.learning_rate(step - 1))
        scalars |= self.epochs(step) | self.time.metrics()
        self.writer.write(step, scalars)
        self.time.save()
        self.progress.show(scalars)

    def _evaluate(self, state: TrainState, saving: bool) -> tuple[dict[str, float], bool]:
        """Measures a state that may be saved; also returns whether it is the best so far."""
        step, start = int(state.step), time.monotonic()
        with self.time.clock.phase("evaluating"):
            try:
                with self.signals.interrupting(
                    f"stopped on request in the evaluation of step {step}; the same command "
                    "continues with it"
                ):
                    results = agreement.share(f"evaluation/{step}", self.evaluate(state))
                    best = self.checkpointer.improves(results)
            except (Exception, Stopped):
                # The trained state is worth keeping, whatever is wrong with measuring it.
                if jax.process_count() == 1:  # others may be fine, and would not join the save
                    self._save(state, None, last=True)
                raise
            with self._saved_if_not_logged(state):
                if results:
                    kept = self.checkpointer.folder / str(step) if saving or best else None
                    self.writer.write(step, results)
                    self.writer.flush()
                    # Last, since a run that continues does not repeat an evaluation in here.
                    self.evaluations.write(step, results, time.monotonic() - start, kept)
                self.writer.show(step, self.pictures(step))
        if results:
            self.progress.say(f"step {step}\n{format_table(results)}")
        return results, best
