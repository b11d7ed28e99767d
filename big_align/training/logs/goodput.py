"""Where the time of a run goes: the fraction spent on training, and what the rest is spent on."""

import contextlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from big_align.core.regular_files import read_regular
from big_align.core.whole_files import write_whole
from big_align.parallel.distributed import activity
from big_align.training.logs.phases import PHASES


class Phase(NamedTuple):
    """What a process is doing."""

    name: str  # a key of `PHASES`
    since: float  # in seconds of the clock


class Clock:
    """Divides the time of a process into phases, exactly one of which is running at any time."""

    def __init__(self, read: Callable[[], float] = time.monotonic):
        self._read = read
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.current = Phase("starting", read())
        """The running phase; any thread may read it."""

    def begin(self, name: str) -> None:
        """Ends the running phase and begins another; does nothing if it is the same."""
        if name not in PHASES:
            raise ValueError(f"phase {name!r} is not one of {', '.join(PHASES)}")
        if name != self.current.name:
            now = self._read()
            self._seconds[self.current.name] += now - self.current.since
            self.current = Phase(name, now)
            activity.begin(PHASES[name])

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time spent inside as a phase, and resumes the previous phase afterwards."""
        former = self.current.name
        self.begin(name)
        try:
            yield
        finally:
            self.begin(former)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of every phase so far; together they are the whole time."""
        name, since = self.current
        return self._seconds | {name: self._seconds[name] + self._read() - since}


class RunTime:
    """The time of a run over all its processes, kept in `WORKDIR/goodput.json`.

    The time of a killed process after its last record counts as time between processes.
    """

    def __init__(self, workdir: str, clock: Clock, now: Callable[[], float] = time.time):
        self.clock = clock
        self._path = pathlib.Path(workdir) / "goodput.json"
        self._now = now
        record = _read_record(self._path)
        self._furthest = self._before = record["step"]
        self._earlier, self._spent = record["seconds"], record["chip_seconds"]
        if record["time"] is not None:
            began = now() - sum(clock.seconds().values())
            self._earlier["down"] += max(0.0, began - record["time"])

    def begin_step(self, step: int) -> None:
        """Begins a step, which counts as progress if no earlier process has done it."""
        self.clock.begin("steps" if step > self._before else "repeated_steps")
        activity.begin("in a step", step)
        self._furthest = max(self._furthest, step)

    def metrics(self) -> dict[str, float]:
        """Returns the fractions of this process's time, and the goodput of the whole run."""
        mine = self.clock.seconds()
        fractions = {f"time/{name}": x for name, x in _fraction(mine).items() if name != "down"}
        return fractions | {"goodput": _fraction(_add(mine, self._earlier))["steps"]}

    def save(self) -> None:
        """Saves the time so far for the process that continues this run."""
        if jax.process_index() != 0:
            return
        mine = self.clock.seconds()
        record = {
            "step": self._furthest,
            "time": self._now(),
            "seconds": _add(mine, self._earlier),
            "chip_seconds": self._spent + sum(mine.values()) * jax.device_count(),
        }
        write_whole(self._path, json.dumps(record).encode() + b"\n")

    def report(self) -> None:
        """Prints where the time went, if there were any steps, and saves it."""
        mine = self.clock.seconds()
        if jax.process_index() != 0 or not mine["steps"] + mine["repeated_steps"]:
            return
        self.save()
        # In one piece: a thread that ends the process could write its error before the newline.
        print(f"{_format(mine, _add(mine, self._earlier))}\n", end="")


def _read_record(path: pathlib.Path) -> dict:
    """Returns what earlier processes have recorded; an empty record if it cannot be read."""
    none = {"step": 0, "time": None, "seconds": dict.fromkeys(PHASES, 0.0), "chip_seconds": 0.0}
    try:
        found = json.loads(read_regular(path))
        seconds = {name: float(found["seconds"][name]) for name in PHASES}
        when = None if found["time"] is None else float(found["time"])
        spent = float(found.get("chip_seconds", 0))
        return {"step": int(found["step"]), "time": when, "seconds": seconds, "chip_seconds": spent}
    except (OSError, ArithmeticError, ValueError, TypeError, LookupError, RecursionError):
        return none


def _add(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a[name] + b[name] for name in PHASES}


def _fraction(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values()) or 1.0
    return {name: x / total for name, x in seconds.items()}


def _format(mine: dict[str, float], whole: dict[str, float]) -> str:
    """Formats the time of this process, and of the whole run if it had others, as a table."""
    columns = [("this process", mine)]
    if whole != mine:
        columns.append(("the whole run", whole))
    width = max(map(len, PHASES.values()))
    lines = [f"{'time':<{width}}" + "".join(f"  {title:>20}" for title, _ in columns)]
    for name, words in PHASES.items():
        if whole[name]:
            cells = (f"  {x[name]:>10,.1f} s {_fraction(x)[name]:>7.1%}" for _, x in columns)
            lines.append(f"{words:<{width}}" + "".join(cells))
    return "\n".join(lines)
