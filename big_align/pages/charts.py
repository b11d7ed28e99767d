"""Curves over the steps of a run, laid out for `templates/parts.html` to draw."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from big_align.pages.rendering import format_number

Series = list[tuple[int, float]]
"""Steps, ascending, and values."""
COLORS = 8
"""Number of colors of the page: --c0 and so on."""
POINTS = 240
"""Most points of a curve; if there are more, they are averaged."""
DOTS = 40
"""Most points of a curve that are shown as dots, with their values."""
LEFT, RIGHT, TOP, BOTTOM = 46, 354, 10, 146
"""The edges of the plotting area of a chart, in pixels."""
LARGEST = 1e300
"""Numbers beyond this are drawn like infinity: their sums and differences may be infinite."""
SMALLEST = 1e-300
"""Differences below this are nothing: floats have no tenth of them."""


class Curve(NamedTuple):
    """A curve of a chart.

    Attributes:
      name: its name in the legend.
      color: the number of its color.
      path: its corners, as SVG has them.
      dots: x, y and description of each point; none if there are too many.
    """

    name: str
    color: int
    path: str
    dots: list[tuple[float, float, str]]


class Chart(NamedTuple):
    """Curves with a grid; positions are in pixels from the upper left.

    Attributes:
      title: title above the curves.
      ticks: y and label of each horizontal line.
      first: the first step.
      last: the last step.
      curves: the curves that have points.
      legend: the names of the curves, each with its color; empty if there is no other.
    """

    title: str
    ticks: list[tuple[float, str]]
    first: int
    last: int
    curves: list[Curve]
    legend: list[tuple[str, int]]


def draw_chart(title: str, curves: Mapping[str, Series]) -> Chart | None:
    """Draws curves over the steps; returns None if there is nothing to draw.

    Args:
      title: title above the curves.
      curves: steps and values by name, colored in order; values that are not finite are left out.
    """
    thin = {name: _thin(values) for name, values in curves.items()}
    everything = [point for points in thin.values() for point in points]
    if not everything:
        return None
    steps, values = zip(*everything, strict=True)
    first, last = min(steps), max(steps)
    ticks = choose_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]

    def across(step: int) -> float:
        part = (step - first) / (last - first) if last > first else 0.5
        return round(LEFT + 6 + (RIGHT - LEFT - 12) * part, 1)

    def down(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    drawn = []
    for number, (name, points) in enumerate(thin.items()):
        if not points:
            continue
        path = " ".join(f"{across(x)},{down(y)}" for x, y in points)
        told = [(across(x), down(y), f"{name}, step {x:,}: {format_number(y)}") for x, y in points]
        drawn.append(Curve(name, number % COLORS, path, told if len(points) <= DOTS else []))
    grid = [(down(tick), format_tick(tick, ticks[1] - ticks[0])) for tick in ticks]
    legend = [(curve.name, curve.color) for curve in drawn] if len(thin) > 1 else []
    return Chart(title, grid, first, last, drawn, legend)


def _thin(values: Series) -> Series:
    """Returns the finite values; if there are more than can be seen, means of neighbors."""
    values = [(step, value) for step, value in values if abs(value) <= LARGEST]
    if len(values) <= POINTS:
        return values
    size = math.ceil(len(values) / POINTS)
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def choose_ticks(low: float, high: float) -> list[float]:
    """Returns evenly spaced round numbers, from not above `low` to not below `high`.

    There are three to seven of them.
    """
    if high - low <= max(1e-9 * max(abs(low), abs(high)), SMALLEST):
        middle, half = (low + high) / 2, abs(low) / 10 if abs(low) > 10 * SMALLEST else 1.0
        low, high = middle - half, middle + half
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(n * power for n in (1, 2, 5, 10) if (high - low) / (n * power) <= 5)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(begin, end + 1)]


def format_tick(value: float, step: float) -> str:
    """Formats a round value so that it differs from those one step away."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits > 5 or abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value + 0.0:,.{digits}f}"
