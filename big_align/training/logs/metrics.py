"""What a run logs: metrics on disk, a progress bar, and how fast the machine works."""

import json
import math
import os
import pathlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from big_align.core.progress import make_bar
from big_align.core.whole_files import naming
from big_align.parallel.devices.chips import find_chip
from big_align.training.logs.directions import CANDIDATES, CHANCE
from big_align.training.logs.event_files import EventFile, Line, mend_events
from big_align.training.logs.goodput import Clock
from big_align.training.logs.line_files import keep_lines, number_of, read_lines
from big_align.training.logs.trackers import Pictures, Tracker

FILE = "metrics.jsonl"
NEEDS = ("step",)


def finite_or_text(scalars: Mapping[str, float]) -> dict[str, float | str]:
    """Returns scalars with NaN and infinity as strings, since JSON does not have them."""
    return {name: x if math.isfinite(x) else str(x) for name, x in scalars.items()}


def read_metrics(workdir: str) -> dict[str, list[tuple[int, float]]]:
    """Reads `metrics.jsonl`: the steps and values of every scalar, by name.

    Raises:
      FileNotFoundError: the workdir has no metrics.
    """
    path = pathlib.Path(workdir) / FILE
    if not path.exists():
        raise FileNotFoundError(f"no {path}: train with this workdir first")
    series: dict[str, list[tuple[int, float]]] = {}
    for step, numbers in _read_numbers(path):
        for name, value in numbers.items():
            series.setdefault(name, []).append((step, value))
    return series


def _read_numbers(path: pathlib.Path) -> Iterator[Line]:
    """Yields the step and numbers of each line that can be read."""
    for record in read_lines(path, NEEDS):
        numbers = {name: number_of(value) for name, value in record.items() if name != "step"}
        if record["step"] is not None:
            yield record["step"], {k: v for k, v in numbers.items() if v is not None}


class MetricWriter:
    """Writes scalars to `metrics.jsonl` and trackers, from the first process only.

    What an earlier run wrote after `step` is dropped, since the run repeats those steps. What it
    wrote of `step`, such as an evaluation that the run repeats, is not written again.
    """

    def __init__(self, workdir: str, step: int, trackers: Sequence[Tracker] = ()):
        self._active = jax.process_index() == 0
        if not self._active:
            return
        path = pathlib.Path(workdir) / FILE
        keep_lines(path, lambda found: (found["step"] or 0) <= step, NEEDS)
        lines = list(_read_numbers(path))
        self._known = [(at, numbers.keys()) for at, numbers in lines if at == step]
        mend_events(path.parent, step, lines)
        self._board = EventFile(path.parent, step + 1)
        self._file = path.open("a", buffering=1)
        self._trackers = [self._board, *trackers]

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends the scalars of a step; NaN and infinity are written as strings, valid JSON."""
        if not self._active or any(step == at and scalars.keys() <= x for at, x in self._known):
            return
        with naming(self._file.name):
            self._file.write(json.dumps({"step": step} | finite_or_text(scalars)) + "\n")
        for tracker in self._trackers:
            tracker.write(step, scalars)

    def show(self, step: int, pictures: Pictures) -> None:
        """Passes pictures of a step to the trackers."""
        if self._active:
            for tracker in self._trackers:
                tracker.show(step, pictures)

    def flush(self) -> None:
        """Returns once everything written is on disk, as it must be before a save."""
        if self._active:
            with naming(self._file.name):
                os.fsync(self._file.fileno())
            self._board.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._active:
            with naming(self._file.name):
                self._file.close()
            for tracker in self._trackers:
                tracker.close()


class Progress:
    """A progress bar with the time left, and where the time of a step goes.

    Time up to the dispatch of a step is that step's; time spent on waiting for a step's metrics is
    that of the step that was waited for. So rates do not depend on how many steps are underway.
    `step_flops` are the model FLOPs of a step on one device.
    """

    def __init__(
        self, step: int, total_steps: int, batch_size: int, step_flops: float, clock: Clock
    ):
        self._batch_size = batch_size
        self._clock = clock
        self._step_flops = step_flops
        self._chip = find_chip(jax.local_devices()[0].device_kind)
        self._since = self._read_clock()
        self._underway: deque[np.ndarray] = deque()
        self._spent, self._steps = np.zeros(2), 0
        self._rates: dict[str, float] = {}
        self._bar = make_bar(
            total=total_steps,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            smoothing=0,  # the rate of late would count an evaluation as a slow step, or not at all
            disable=jax.process_index() != 0,
        )

    def wait_for(self, batches: Iterator[Any]) -> Any:
        """Takes the next batch and counts the time as waiting for data."""
        with self._clock.phase("data"):
            return next(batches)

    def advance(self) -> None:
        """Moves the bar by a step that has been dispatched."""
        self._underway.append(self._lap())
        self._bar.update()

    def finish(self) -> None:
        """Counts the oldest step underway, whose metrics are there."""
        self._spent += self._underway.popleft() + self._lap()
        self._steps += 1

    def rates(self) -> dict[str, float]:
        """Returns images/s, seconds and waiting time per step, and FLOPs/s, since the last call.

        They are those of finished steps; without a new one, rates stay.
        """
        if self._steps:
            seconds, waited = self._spent / self._steps
            seconds = max(seconds, 1e-9)
            flops = self._step_flops / seconds
            self._rates = {
                "images_per_second": self._batch_size / seconds,
                "step_seconds": seconds,
                "data_wait_seconds": waited,
                "device_flops_per_second": flops,
            }
            if self._chip:
                self._rates["model_flop_utilization"] = flops / self._chip.device_flops
            self._spent, self._steps = np.zeros(2), 0
        return dict(self._rates)

    def show(self, scalars: Mapping[str, float]) -> None:
        """Shows the loss and the rates beside the bar."""
        wait = scalars["data_wait_seconds"] / scalars["step_seconds"]
        self._bar.set_postfix_str(
            f"loss {scalars['loss']:.3f}, {scalars['images_per_second']:.0f} images/s, "
            f"{wait:.0%} waiting for data",
            refresh=False,
        )

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if jax.process_index() == 0:
            self._bar.write(text)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()

    def _read_clock(self) -> np.ndarray:
        """Returns the seconds of all steps, and how much of them was waiting for data."""
        now = self._clock.seconds()
        return np.array([now["steps"] + now["repeated_steps"] + now["data"], now["data"]])

    def _lap(self) -> np.ndarray:
        """Returns what has been added to `_read_clock` since the last call."""
        before, self._since = self._since, self._read_clock()
        return self._since - before


def format_table(rows: Mapping[str, float]) -> str:
    """Formats named numbers as a table, each with what it is by chance, if that is known."""
    beside = {f"{name}{CHANCE}" for name in rows}
    shown = {name: value for name, value in rows.items() if name not in beside}
    width = max((len(name) for name in shown), default=0)
    lines = []
    for name, value in shown.items():
        written = f"{value:8.0f}" if name.endswith(CANDIDATES) else f"{value:8.4f}"
        chance = rows.get(f"{name}{CHANCE}")
        told = "" if chance is None else f"  (chance {chance:.4f})"
        lines.append(f"  {name:<{width}}  {written}{told}")
    return "\n".join(lines)
