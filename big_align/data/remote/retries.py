"""What all readers and writers of a network share: what is tried again, how often, and when."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from absl import logging

PAUSES = 1.0, 3.0, 9.0, 27.0  # seconds, each times a random number from 0.5 to 1.5
LONGEST_PAUSE = 60.0  # seconds, of what a server may ask for
PASSING = 408, 429, 500, 502, 503, 504
"""The answers of a server that is busy or ill, which may be another one the next time."""

Result = TypeVar("Result")


class Verdict(NamedTuple):
    """What an error means: how it is told, and whether another try may mend it."""

    kind: Callable[[str], Exception]
    told: str
    passes: bool = False
    pause: float | None = None  # seconds that the server asks for


def call(function: Callable[[], Result], judge: Callable[[Exception], Verdict | None]) -> Result:
    """Calls a function, again after a pause if its error may pass; each try is a line of the log.

    Hosts that fail together do not come back together, as the pauses are drawn.

    Args:
      function: what is called.
      judge: returns what an error means; None for one that is no fault of a network, which is
        raised as it is.
    """
    began, draw = time.monotonic(), random.SystemRandom()
    for tries, pause in enumerate((*PAUSES, None), start=1):
        try:
            return function()
        except Exception as error:
            verdict = judge(error)
            if verdict is None:
                raise
            if not verdict.passes:
                raise verdict.kind(verdict.told) from error
            if pause is None:
                often = f"tried {tries} times in {time.monotonic() - began:.0f} s"
                raise verdict.kind(f"{verdict.told} ({often})") from error
            pause = min(verdict.pause or pause * draw.uniform(0.5, 1.5), LONGEST_PAUSE)
            # an error: tools that read thousands of files log no warnings
            logging.error("%s; try %d follows in %.1f s", verdict.told, tries + 1, pause)
        time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def follow(error: BaseException | None) -> list[Any]:
    """Returns an error and those that it was raised from."""
    chain: list[Any] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__
    return chain
