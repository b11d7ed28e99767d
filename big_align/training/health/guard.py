"""Watches the numbers of every step for values that are not finite or leave their usual spread."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from big_align.training.health.spread import Range, RunningSpread, Side

FINITE = {"loss": "the loss", "parameter_norm": "the norm of the parameters"}
"""Numbers that must be finite.

The loss is that of the parameters before a step, and their norm that after it: if both are finite,
the state may be saved.
"""
JUMPS: Mapping[str, Side] = {"loss": "above", "gradient_norm": "above"}
"""The numbers watched in every run."""


class Alarm(NamedTuple):
    """A number of a step that is a sign of divergence."""

    step: int  # the step after which it was measured
    name: str
    value: float
    expected: Range | None  # where it should be; None for a number that should be finite

    def describe(self) -> str:
        """Returns what is wrong, without a final period."""
        if self.expected is None:
            return f"{FINITE[self.name]} is {self.value} at step {self.step}"
        low, high = self.expected
        expected = f"at most {high:.4g}" if math.isfinite(high) else f"at least {low:.4g}"
        return f"{self.name} is {self.value:.4g} at step {self.step}, expected was {expected}"


class Guard:
    """Calls `respond` with an alarm at the first step at which a number is not as expected."""

    def __init__(self, respond: Callable[[Alarm], None], watched: Mapping[str, Side] | None = None):
        self._respond = respond
        self._spreads = {
            name: RunningSpread(side) for name, side in {**JUMPS, **(watched or {})}.items()
        }

    def check(self, step: int, scalars: Mapping[str, float]) -> None:
        """Checks the numbers of a step, and calls `respond` with the worst alarm, if any."""
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
        """Returns the state of the spreads as JSON values."""
        return {name: spread.state() for name, spread in self._spreads.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; a spread that is missing from it starts empty."""
        for name, spread in self._spreads.items():
            if name in state:
                spread.restore(state[name])
