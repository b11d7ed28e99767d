"""Trials, one a core at a time; each is recorded when it has finished, and found again."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.parallel.devices import compilation
from big_align.training.logs import line_files

RECORDED = pathlib.Path(__file__).parent / "trials"
"""The trials behind the tables of docs/results, a file for each experiment."""
FILE, PROGRAMS = "trials.jsonl", "compiled"
"""What the output folder holds: the numbers of other trials, and compiled programs."""


class Trial(NamedTuple):
    """A call that returns numbers; the name is that of the line that records them."""

    name: str
    arguments: tuple[Any, ...]


class Record(NamedTuple):
    """The numbers of a finished trial, and the seconds that it took."""

    numbers: Mapping[str, float]
    seconds: float


def read_records(*paths: pathlib.Path) -> dict[str, Record]:
    """Returns the finished trials of files, by name."""
    return {
        line["name"]: Record(line["numbers"], line["seconds"])
        for path in paths
        for line in line_files.read_lines(path, ("name", "numbers", "seconds"))
    }


def run_trials(
    todo: Sequence[Trial], call: Callable[..., Mapping[str, float]], output: pathlib.Path
) -> dict[str, Record]:
    """Runs trials, records each one when it has finished, and returns them by name.

    One that fails costs no other: its error is raised when all have ended. What is called is a
    function of a module, since other processes call it.
    """
    found, failed = {}, []
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for core in (available := sorted(os.sched_getaffinity(0))):
        cores.put(core)
    with concurrent.futures.ProcessPoolExecutor(
        len(available), context, initializer=_set_up, initargs=(cores, str(output / PROGRAMS))
    ) as pool:
        futures = {pool.submit(_time, call, trial.arguments): trial.name for trial in todo}
        for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
            name = futures[future]
            if error := future.exception():
                print(f"{number} of {len(todo)}: {name} failed: {error}", flush=True)
                failed.append(error)
                continue
            numbers, seconds = future.result()
            record = dict(name=name, seconds=round(seconds), numbers=numbers)
            line_files.append_line(output / FILE, record)
            found[name] = Record(numbers, seconds)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            print(f"{number} of {len(todo)}: {name} {shown}", flush=True)
    if failed:
        raise failed[0]
    return found


def _time(
    call: Callable[..., Mapping[str, float]], arguments: tuple[Any, ...]
) -> tuple[Mapping[str, float], float]:
    start = time.monotonic()
    return call(*arguments), time.monotonic() - start


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
