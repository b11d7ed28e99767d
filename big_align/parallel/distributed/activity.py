"""What this process is doing: for the other processes, and for the watchdog if a step hangs."""

import dataclasses
import socket
import time
from typing import Any


@dataclasses.dataclass(frozen=True)
class Activity:
    """What a process is doing.

    Attributes:
      what: a description, as in "waiting for data".
      step: its current step; None before the first.
      since: when it began, on the clock of `time.monotonic`.
    """

    what: str
    step: int | None
    since: float


_current = Activity("starting", None, time.monotonic())


def describe() -> dict[str, Any]:
    """Returns what this process is doing, since how many seconds and on which host, for JSON."""
    now = _current
    return {
        "host": socket.gethostname(),
        "what": now.what,
        "step": now.step,
        "seconds": time.monotonic() - now.since,
    }


def begin(what: str, step: int | None = None) -> None:
    """Records that this process begins something; the step stays the same unless one is given."""
    global _current
    _current = Activity(what, _current.step if step is None else step, time.monotonic())
