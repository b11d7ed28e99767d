"""Trials of an experiment, one a core at a time; a finished one is found again.

What an experiment says is that of several seeds: means with the interval of 95% by Student's t. The
numbers of all trials are in one file of the output folder, a line each. Those behind most
tables of docs/results.md are in docs/trials/: an experiment that finds such a file as
OUTPUT/trials.jsonl prints its tables from it, or goes on where it ends.
"""

import argparse
import concurrent.futures
import math
import multiprocessing
import os
import pathlib
import statistics
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from big_align.parallel.devices import compilation
from big_align.training.logs import line_files

TUNING_SEED = 100
FILE, PROGRAMS = "trials.jsonl", "compiled"
"""What the output folder holds: the numbers of trials, and the folder of compiled programs."""


class Trial(NamedTuple):
    """A training and what it is measured by.

    Attributes:
      name: of the line with its numbers.
      settings: the arguments of the function that trains.
    """

    name: str
    settings: Mapping[str, Any]


def make_parser(
    description: str, seeds: int = 5, **choices: Iterable[str]
) -> argparse.ArgumentParser:
    """Makes the command line of an experiment.

    Args:
      description: what it prints as help.
      seeds: how many trainings of each row are measured by default.
      **choices: further flags by name: all of these by default, or some.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=_make_folder, required=True)
    for name, names in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=names, default=list(names))
    parser.add_argument("--seeds", type=_count_seeds, default=seeds)
    return parser


def _count_seeds(text: str) -> int:
    """Reads a number of seeds: an interval takes two."""
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is not 2 or more, which an interval takes")
    return int(text)


def _make_folder(path: str) -> pathlib.Path:
    """Makes a folder, if need be, and returns its path from the root."""
    folder = pathlib.Path(path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def do_nothing() -> None:
    """Prepares nothing."""


def run_trials(
    trials: Iterable[Trial],
    train: Callable[..., dict[str, float]],
    output: pathlib.Path,
    prepare: Callable[[], None] = do_nothing,
) -> dict[str, dict[str, float]]:
    """Runs what is not finished, one trial per core, and returns the numbers of each by name.

    Args:
      trials: the trials; equal ones are run once.
      train: takes the settings of a trial and returns numbers; a function of a module, since other
        processes call it.
      output: the folder of the results.
      prepare: makes what trials share; called before the first one that is not finished.
    """
    trials = {trial.name: trial for trial in trials}
    found = read_trials(output / FILE)
    if todo := [trial for name, trial in trials.items() if name not in found]:
        prepare()
        found |= _run_each(todo, train, output)
    return {name: found[name] for name in trials}


def _run_each(
    todo: Sequence[Trial], train: Callable[..., dict[str, float]], output: pathlib.Path
) -> dict[str, dict[str, float]]:
    """Runs trials, records each one when it has finished, and returns their numbers by name.

    One that fails costs no other: its error is raised when all have ended.
    """
    found, failed = {}, []
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for core in (available := sorted(os.sched_getaffinity(0))):
        cores.put(core)
    with concurrent.futures.ProcessPoolExecutor(
        len(available), context, initializer=_set_up, initargs=(cores, str(output / PROGRAMS))
    ) as pool:
        futures = {pool.submit(_time, train, trial.settings): trial.name for trial in todo}
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name = futures[future]
            if error := future.exception():
                print(f"{number} of {len(todo)}: {name} failed: {error}", flush=True)
                failed.append(error)
                continue
            numbers, seconds = future.result()
            record = dict(name=name, seconds=round(seconds), numbers=numbers)
            line_files.append_line(output / FILE, record)
            found[name] = numbers
            print(f"{number} of {len(todo)}: {name} {_show(numbers)}", flush=True)
    if failed:
        raise failed[0]
    return found


def run_rows(
    rows: Mapping[Any, Sequence[Trial]],
    train: Callable[..., dict[str, float]],
    output: pathlib.Path,
    prepare: Callable[[], None] = do_nothing,
) -> dict[Any, list[dict[str, float]]]:
    """Runs the trials of rows, and returns the numbers of each seed, by row.

    Args:
      rows: the trials of each row, one a seed.
      train: as in `run_trials`.
      output: as in `run_trials`.
      prepare: as in `run_trials`.
    """
    each_of = [trial for row in rows.values() for trial in row]
    found = run_trials(each_of, train, output, prepare)
    return {row: [found[trial.name] for trial in trials] for row, trials in rows.items()}


def read_trials(path: pathlib.Path) -> dict[str, dict[str, float]]:
    """Returns the numbers of each trial that a file records, by name."""
    lines = line_files.read_lines(path, ("name", "numbers"))
    return {line["name"]: line["numbers"] for line in lines}


def choose_best(
    tuning: Mapping[str, Mapping[float, Trial]],
    metrics: Iterable[str],
    train: Callable[..., dict[str, float]],
    output: pathlib.Path,
    prepare: Callable[[], None] = do_nothing,
) -> dict[str, float]:
    """Chooses a setting for each row of a table: the one with the highest mean of some metrics.

    Args:
      tuning: the trial of each setting, by row.
      metrics: numbers of a trial, measured on a development split.
      train: as in `run_trials`.
      output: as in `run_trials`.
      prepare: as in `run_trials`.
    """
    each_of = [each for row in tuning.values() for each in row.values()]
    found = run_trials(each_of, train, output, prepare)
    metrics = tuple(metrics)

    def score(trial: Trial) -> float:
        return sum(found[trial.name][metric] for metric in metrics)

    best = {
        row: max(each, key=lambda setting: score(each[setting]))  # noqa: B023 - called at once
        for row, each in tuning.items()
    }
    for row, setting in best.items():
        if len(tuning[row]) > 2 and setting in (min(tuning[row]), max(tuning[row])):
            print(f"{row}: the best is at the edge of what was tried, {setting:g}", flush=True)
    return best


def tune_and_measure(
    rows: Iterable[str],
    settings: Sequence[float],
    make_trial: Callable[[str, str, float, int], Trial],
    metrics: Sequence[str],
    train: Callable[..., dict[str, float]],
    output: pathlib.Path,
    seeds: int,
    prepare: Callable[[], None] = do_nothing,
) -> tuple[dict[str, list[dict[str, float]]], dict[str, float]]:
    """Tunes each row on the development split with a seed of its own, and measures it on test.

    Args:
      rows: the rows of a table.
      settings: the settings that each row is tried with.
      make_trial: takes a row, a split ("dev" or "test"), a setting and a seed.
      metrics: numbers of a trial, by whose mean a setting is chosen.
      train: as in `run_trials`.
      output: as in `run_trials`.
      seeds: how many trainings of each row are measured.
      prepare: as in `run_trials`.

    Returns:
      The numbers of each seed, by rows, and the settings that were chosen.
    """
    rows = tuple(rows)
    tuning = {row: {x: make_trial(row, "dev", x, TUNING_SEED) for x in settings} for row in rows}
    best = choose_best(tuning, metrics, train, output, prepare)
    last = {
        row: [make_trial(row, "test", best[row], seed) for seed in range(seeds)] for row in rows
    }
    return run_rows(last, train, output, prepare), best


def _time(
    train: Callable[..., dict[str, float]], settings: Mapping[str, Any]
) -> tuple[dict[str, float], float]:
    """Returns the numbers of a trial and its seconds."""
    start = time.monotonic()
    return train(**settings), time.monotonic() - start


def _set_up(cores: Any, programs: str) -> None:
    """Keeps a process on a core of its own: two that share two take longer than one on each.

    Seeds of a setting share their compiled programs, and all trials those that evaluate. On a
    machine with a GPU, trials share that too, so none reserves its memory.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.sched_setaffinity(0, {cores.get()})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compilation.use_cache(programs)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is killed: nobody would hear of its trial."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _show(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def measure_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of two or more values, and half the width of its interval of 95%."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), float(stats.t.ppf(0.975, len(values) - 1)) * error


def format_interval(values: Sequence[float]) -> str:
    """Returns "mean ± half width" in percent."""
    mean, half = measure_interval([100 * value for value in values])
    return f"{mean:.1f} ± {half:.1f}"


def subtract_runs(
    runs: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]
) -> list[dict[str, float]]:
    """Returns the numbers of each seed less those of the other row, paired by seed."""
    return [
        {x: a[x] - b[x] for x in a.keys() & b.keys()} for a, b in zip(runs, others, strict=True)
    ]


def subtract(
    rows: Mapping[str, Sequence[Mapping[str, float]]], compared: str
) -> dict[str, list[dict[str, float]]]:
    """Returns the numbers of the other rows less those of one, paired by seed."""
    return {
        name: subtract_runs(runs, rows[compared]) for name, runs in rows.items() if name != compared
    }


def print_table(
    title: str,
    columns: Mapping[str, str],
    rows: Mapping[str, Sequence[Mapping[str, float]]],
    notes: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
) -> None:
    """Prints means of percentages with the interval of each.

    Args:
      title: printed above the table.
      columns: the metric of each column.
      rows: the numbers of each seed, by row.
      notes: further columns: what they say of each row.
    """
    names = " | ".join([*columns, *notes])
    print(f"\n{title}\n\n| | {names} |\n{'|---' * (len(columns) + len(notes) + 1)}|")
    for row, runs in rows.items():
        cells = [format_interval([run[metric] for run in runs]) for metric in columns.values()]
        cells += [str(note[row]) for note in notes.values()]
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


def print_comparison(
    columns: Mapping[str, str],
    rows: Mapping[str, Sequence[Mapping[str, float]]],
    baselines: Iterable[str],
    notes: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
    name: str = "",
) -> None:
    """Prints a table of rows, and of what the other rows have more than each baseline.

    Args:
      columns: as in `print_table`.
      rows: as in `print_table`.
      baselines: rows to compare with; those that `rows` lacks are left out.
      notes: as in `print_table`.
      name: of the table, if there are several.
    """
    prefix = f"{name}, " if name else ""
    seeds = len(next(iter(rows.values())))
    print_table(f"{prefix}{seeds} seeds", columns, rows, notes)
    for baseline in baselines:
        if baseline in rows and len(rows) > 1:
            apart = subtract(rows, baseline)
            print_table(f"{prefix}difference from {baseline}, paired by seed", columns, apart)
