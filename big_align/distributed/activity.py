"""What this process does at the moment: it tells the others, and the watchdog when a step hangs."""

import dataclasses
import socket
import time
from typing import Any


@dataclasses.dataclass(frozen=True)
class Activity:
    """What a process does.

    Attributes:
      what: in words, as in "waiting for data".
      step: the step that it is at; None before the first.
      since: when it began, on the clock of `time.monotonic`.
    """

    what: str
    step: int | None
    since: float


_current = Activity("starting", None, time.monotonic())


def describe() -> dict[str, Any]:
    """Returns what this process does, for how many seconds and on which host, as JSON holds it."""
    now = _current
    return {
        "host": socket.gethostname(),
        "what": now.what,
        "step": now.step,
        "seconds": time.monotonic() - now.since,
    }


def begin(what: str, step: int | None = None) -> None:
    """Notes that this process begins something; the step stays unless one is given."""
    global _current
    _current = Activity(what, _current.step if step is None else step, time.monotonic())
