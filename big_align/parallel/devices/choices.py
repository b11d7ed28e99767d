"""What was chosen for the devices while a function was traced, for whoever wants to print it.

A layer that can be computed in several ways takes one by device, type and shape. It tells what it
took with `note`; whoever traces a step collects these lines.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_LINES: ContextVar[dict[str, None] | None] = ContextVar("lines", default=None)


@contextlib.contextmanager
def collect() -> Iterator[dict[str, None]]:
    """Collects what is chosen while the code inside is traced: each line once, as a key."""
    lines: dict[str, None] = {}
    token = _LINES.set(lines)
    try:
        yield lines
    finally:
        _LINES.reset(token)


def note(line: str) -> None:
    """Adds a line, such as "attention: cudnn for 257 tokens of bfloat16", if anyone collects."""
    lines = _LINES.get()
    if lines is not None:
        lines[line] = None
