"""Numbers of trials during training: means over windows of steps, and pictures of them."""

import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import trials
from big_align.training.logs import line_files

Runs = Sequence[Mapping[str, float]]
"""The numbers of each seed."""


def list_windows(steps: int, window: int) -> range:
    """Returns the last step of each window."""
    return range(window, steps + 1, window)


def read_windows(
    workdir: pathlib.Path, metrics: Iterable[str], steps: int, window: int
) -> dict[str, float]:
    """Returns the mean of what a run has logged in each window, by "METRIC/LAST STEP".

    Args:
      workdir: that of the run.
      metrics: names of what is logged.
      steps: of the run.
      window: number of steps.
    """
    lines = list(line_files.read_lines(workdir / "metrics.jsonl", ("step",)))
    return {
        f"{metric}/{last}": statistics.mean(
            line[metric]
            for line in lines
            if metric in line and last - window < line["step"] <= last
        )
        for last in list_windows(steps, window)
        for metric in metrics
    }


def draw(axis: Any, metric: str, steps: Iterable[int], runs: Runs, **settings: Any) -> None:
    """Draws the means of a metric over the seeds, and their intervals, against the steps.

    Args:
      axis: of matplotlib.
      metric: the name of what was logged.
      steps: the last ones of windows.
      runs: the numbers of each seed.
      **settings: of the line.
    """
    points = [trials.measure_interval([run[f"{metric}/{step}"] for run in runs]) for step in steps]
    means, halves = zip(*points, strict=True)
    axis.errorbar(steps, means, halves, capsize=2, **settings)
