"""What this process is doing: for the other processes, and for the watchdog if a step hangs."""

import socket
import time
from typing import Any

_current: tuple[str, int | None, float] = "starting", None, time.monotonic()
"""What it does, its current step (None before the first), and since when."""


def describe() -> dict[str, Any]:
    """Returns what this process is doing, since how many seconds and on which host, for JSON."""
    what, step, since = _current
    seconds = time.monotonic() - since
    return {"host": socket.gethostname(), "what": what, "step": step, "seconds": seconds}


def begin(what: str, step: int | None = None) -> None:
    """Records that this process begins something; the step stays the same unless one is given."""
    global _current
    _current = what, _current[1] if step is None else step, time.monotonic()
