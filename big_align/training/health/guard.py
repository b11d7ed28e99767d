"""Watches the numbers of every step: what is not finite, and what jumps out of its spread."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from big_align.training.health.spread import Range, RunningSpread, Side

FINITE = {"loss": "the loss", "parameter_norm": "the norm of the parameters"}
"""What must be a number.

The loss is that of the parameters before a step and their norm that after it: where both are finite
the state may be saved.
"""
JUMPS: Mapping[str, Side] = {"loss": "above", "gradient_norm": "above"}
"""What is watched in every run."""


class Alarm(NamedTuple):
    """A number of a step that is a bad sign.

    Attributes:
      step: after which it was measured.
      name: of the number.
      value: of the number.
      expected: where it should lie; None for one that should be finite.
    """

    step: int
    name: str
    value: float
    expected: Range | None

    def describe(self) -> str:
        """Returns what is wrong, without a stop."""
        if self.expected is None:
            return f"{FINITE[self.name]} is {self.value} at step {self.step}"
        low, high = self.expected
        expected = f"at most {high:.4g}" if math.isfinite(high) else f"at least {low:.4g}"
        return f"{self.name} is {self.value:.4g} at step {self.step}, expected was {expected}"


class Guard:
    """Raises an alarm at the first step of each departure.

    Args:
      respond: is told of an alarm; it may raise.
      watched: more numbers to watch, each positive, and the side that is a bad sign.
    """

    def __init__(self, respond: Callable[[Alarm], None], watched: Mapping[str, Side] | None = None):
        self._respond = respond
        self._spreads = {
            name: RunningSpread(side) for name, side in {**JUMPS, **(watched or {})}.items()
        }

    def check(self, step: int, scalars: Mapping[str, float]) -> None:
        """Looks at the numbers of a step; `respond` hears of the worst that is wrong with them."""
        alarms = [
            Alarm(step, name, scalars[name], None)
            for name in FINITE
            if not math.isfinite(scalars[name])
        ]
        for name, spread in self._spreads.items():
            if name in scalars and (expected := spread.leaves(scalars[name])):
                alarms.append(Alarm(step, name, scalars[name], expected))
        if alarms:
            self._respond(alarms[0])

    def state(self) -> dict[str, Any]:
        """Returns what it knows of the spreads, as JSON holds it."""
        return {name: spread.state() for name, spread in self._spreads.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state` returned; of what it lacks nothing is known yet."""
        for name, spread in self._spreads.items():
            if name in state:
                spread.restore(state[name])
