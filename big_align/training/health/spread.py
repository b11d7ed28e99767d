"""The running spread of a number that a run logs, and whether a value lies far outside of it.

The spread is that of logarithms, by the median and the median absolute deviation of a window, which
neither one wild value nor half of them move far. In a warmup the numbers drift: then the window is
wide itself, and a value that continues the drift stays inside.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Side = Literal["above", "below"]
"""On which side of its spread a number is a bad sign."""
WINDOW, LEAST = 64, 32
"""Values that a spread is taken of; before there are so many, nothing is far outside."""
SIGMAS = 10.0
"""How many standard deviations off is far outside."""
FACTOR = 2.0
"""By which a value must be off at least: of a number that hardly moves any deviation is large."""
TINY = 1e-6
"""What is less counts as this; a logarithm needs it."""
OF_NORMAL = 1.4826
"""The standard deviation of normal values, in median absolute deviations."""


class Range(NamedTuple):
    """What a value is expected to lie in."""

    low: float
    high: float


class RunningSpread:
    """The spread of the last values of a number.

    Args:
      side: on which a value far outside is a bad sign.
    """

    def __init__(self, side: Side):
        self.side = side
        self._logs: deque[float] = deque(maxlen=WINDOW)
        self._outside = False

    def expect(self) -> Range | None:
        """Returns where the next value is expected; None while there are too few."""
        if len(self._logs) < LEAST:
            return None
        center = statistics.median(self._logs)
        deviation = OF_NORMAL * statistics.median(abs(x - center) for x in self._logs)
        reach = max(SIGMAS * deviation, math.log(FACTOR))
        low = math.exp(center - reach) if self.side == "below" else 0.0
        return Range(low, math.exp(center + reach) if self.side == "above" else math.inf)

    def leaves(self, value: float) -> Range | None:
        """Takes a value; tells whether it leaves the spread, which it does once until it is back.

        Returns:
          Where it was expected; None where it is not far outside, or was already.
        """
        expected, value = self.expect(), max(value, TINY) if math.isfinite(value) else value
        outside = expected is not None and not expected.low <= value <= expected.high
        left, self._outside = outside and not self._outside, outside
        if math.isfinite(value):
            self._logs.append(math.log(value))
        return expected if left else None

    def state(self) -> dict[str, Any]:
        """Returns all that it knows, as JSON holds it exactly."""
        return {"logs": list(self._logs), "outside": self._outside}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state` returned."""
        self._logs = deque(state["logs"], maxlen=WINDOW)
        self._outside = state["outside"]
