"""Tables of numbers: means over seeds with the interval of 95%, and differences, paired by seed."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from experiments.experiment import Found, Numbers


def measure_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of two or more values, and half of the interval of 95%, by Student's t."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), float(stats.t.ppf(0.975, len(values) - 1)) * error


def measure_percent(runs: Sequence[Numbers], measure: str) -> tuple[float, float]:
    """Returns the mean of a measure in percent, and half of its interval."""
    return measure_interval([100 * run[measure] for run in runs])


def format_cell(runs: Sequence[Numbers], measure: str) -> str:
    """Returns "mean ± half of the interval" in percent, or nothing where it was not measured."""
    if not all(measure in run for run in runs):
        return ""
    if len(runs) == 1:
        return f"{100 * runs[0][measure]:.1f}"
    mean, half = measure_percent(runs, measure)
    return f"{mean:.1f} ± {half:.1f}"


def subtract(runs: Sequence[Numbers], others: Sequence[Numbers]) -> list[dict[str, float]]:
    """Returns the numbers of each seed less those of the other row, paired by seed."""
    return [
        {x: a[x] - b[x] for x in a.keys() & b.keys()} for a, b in zip(runs, others, strict=True)
    ]


def print_table(
    title: str, columns: Mapping[str, str], rows: Found, notes: Mapping[str, Mapping[str, Any]] = {}
) -> None:
    """Prints means of percentages with the interval of each, below a title.

    Notes are further columns: what they say of each row.
    """
    names = " | ".join([*columns, *notes])
    print(f"\n{title}\n\n| | {names} |\n{'|---' * (len(columns) + len(notes) + 1)}|")
    for row, runs in rows.items():
        cells = [format_cell(runs, measure) for measure in columns.values()]
        cells += [str(note[row]) for note in notes.values()]
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


def print_differences(
    name: str, columns: Mapping[str, str], rows: Found, baselines: Iterable[str]
) -> None:
    """Prints what the other rows have more than each baseline that there is."""
    for baseline in baselines:
        if baseline in rows and len(rows) > 1:
            others = {
                row: subtract(runs, rows[baseline]) for row, runs in rows.items() if row != baseline
            }
            title = f"{name}difference from {baseline}, paired by seed"
            print_table(title, columns, others)
