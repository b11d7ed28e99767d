"""Reports a step that takes far longer than usual, with what every process is doing."""

import collections
import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

TIMES = 10  # a step is slow when it takes this many times the median of the recent ones

RECENT, FEWEST = 100, 5  # how many steps the median is taken over, at most and at least

MOST_LINES = 16


class Watchdog:
    """Watches the duration of steps in a separate thread.

    One process reports for all; without `activities` (`processes.activities`) there is no thread.
    No step counts as slow before `least_seconds`. These are more than two heartbeats, which deliver
    what the other processes are doing.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        activities: Callable[[], Mapping[int, Mapping[str, Any]]] | None,
        least_seconds: float = 15,
    ):
        self._say = say
        self._activities = activities
        self._least_seconds = least_seconds
        self._recent: collections.deque[float] = collections.deque(maxlen=RECENT)
        self._begun: tuple[int, float] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if activities:
            self._thread.start()

    @contextlib.contextmanager
    def time_step(self, step: int) -> Iterator[None]:
        """Times the code inside as one step; one that fails is none, and is no longer watched."""
        start = time.monotonic()
        self._begun = step, start
        try:
            yield
        finally:
            self._begun = None
        self._recent.append(time.monotonic() - start)

    def close(self) -> None:
        """Stops the thread."""
        self._over.set()
        if self._activities:
            self._thread.join()

    def _watch(self) -> None:
        assert self._activities is not None  # otherwise there is no thread
        reported = None
        while not self._over.wait(self._least_seconds / 10):
            begun = self._begun
            if begun is None or begun[0] == reported or len(self._recent) < FEWEST:
                continue
            step, start = begun
            seconds, usual = time.monotonic() - start, statistics.median(tuple(self._recent))
            if seconds > max(TIMES * usual, self._least_seconds):
                reported = step
                self._say(
                    f"step {step} takes {seconds:.0f} s so far, the median is {usual:.3g} s\n"
                    + format_activities(self._activities())
                )


def format_activities(activities: Mapping[int, Mapping[str, Any]]) -> str:
    """Formats what each process is doing (`Watch.activities`), the least common first."""
    kind = lambda row: (row["what"], row["step"], row["silent"] > 0)  # noqa: E731
    common = collections.Counter(map(kind, activities.values()))
    rows = sorted(activities.items(), key=lambda item: (common[kind(item[1])], item[0]))
    width = max(len(row["host"]) for _, row in rows)
    lines = [f"  {'process':>7}  {'host':<{width}}  {'step':>8}  doing"]
    for process, row in rows[:MOST_LINES]:
        silent = f"; silent for {row['silent']:.0f} s" if row["silent"] else ""
        step = "" if row["step"] is None else row["step"]
        lines.append(
            f"  {process:>7}  {row['host']:<{width}}  {step:>8}  "
            f"{row['what']} for {row['seconds']:.0f} s{silent}"
        )
    more = len(rows) - MOST_LINES
    return "\n".join(lines + [f"  ... and {more} more"] * (more > 0))
