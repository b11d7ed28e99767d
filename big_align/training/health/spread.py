"""The running spread of a logged number, and whether a value is far outside it.

The spread is that of logarithms, given by the median and the median absolute deviation of a window,
which neither one outlier nor many of them, up to half of the values, move far. During warmup the
numbers drift: then the window itself is wide, and a value that continues the drift stays inside.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Side = Literal["above", "below"]  # where, beside its spread, a number is a sign of divergence
WINDOW, LEAST = 64, 32  # values in the window; with fewer, no value is far outside
SIGMAS = 10.0  # number of standard deviations beyond which a value is far outside
FACTOR = 2.0  # at least, of an outlier: if a number hardly moves, any deviation is large
TINY = 1e-6  # smaller values count as this one, since a logarithm is taken
OF_NORMAL = 1.4826  # the standard deviation of a normal distribution, in median absolute deviations


class Range(NamedTuple):
    """The range in which a value is expected."""

    low: float
    high: float


class RunningSpread:
    """The spread of the most recent values of a number."""

    def __init__(self, side: Side):
        self.side = side
        self._logs: deque[float] = deque(maxlen=WINDOW)
        self._outside = False

    def expect(self) -> Range | None:
        """Returns the range in which the next value is expected; None if there are too few."""
        if len(self._logs) < LEAST:
            return None
        center = statistics.median(self._logs)
        deviation = OF_NORMAL * statistics.median(abs(x - center) for x in self._logs)
        reach = max(SIGMAS * deviation, math.log(FACTOR))
        low = math.exp(center - reach) if self.side == "below" else 0.0
        return Range(low, math.exp(center + reach) if self.side == "above" else math.inf)

    def leaves(self, value: float) -> Range | None:
        """Adds a value; returns the range that it leaves: once, until values are back inside."""
        expected, value = self.expect(), max(value, TINY) if math.isfinite(value) else value
        outside = expected is not None and not expected.low <= value <= expected.high
        left, self._outside = outside and not self._outside, outside
        if math.isfinite(value):
            self._logs.append(math.log(value))
        return expected if left else None

    def state(self) -> dict[str, Any]:
        """Returns its whole state, as values that JSON holds exactly."""
        return {"logs": list(self._logs), "outside": self._outside}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._logs = deque(state["logs"], maxlen=WINDOW)
        self._outside = state["outside"]
