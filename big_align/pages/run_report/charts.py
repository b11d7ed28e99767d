"""Curves as SVG that uses the colors of the page."""

import html
import math
from collections.abc import Mapping
from typing import NamedTuple

from big_align.pages.run_report.run_record import Series, finite

COLORS = 8
"""Number of colors of the page: --c0 and so on."""
POINTS = 240
"""Most points of a curve; if there are more, they are averaged."""
WIDTH, HEIGHT = 360, 170
"""Size of a chart, roughly in pixels, so that its font is as large as that of the page."""
LEFT, RIGHT, TOP, BOTTOM = 46, 354, 10, 146
"""The edges of the plotting area of a chart."""

SMALLEST = 1e-300
"""Differences below this are nothing: floats have no tenth of them."""


class Bounds(NamedTuple):
    """The steps and values in the range of a chart."""

    first: int
    last: int
    low: float
    high: float

    def across(self, step: int) -> float:
        """Returns the horizontal position of a step."""
        part = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + 6 + (RIGHT - LEFT - 12) * part

    def down(self, value: float) -> float:
        """Returns the vertical position of a value."""
        return BOTTOM - (BOTTOM - TOP) * (value - self.low) / (self.high - self.low)


def draw_chart(title: str, curves: Mapping[str, Series]) -> str:
    """Draws curves over the steps.

    Args:
      title: title above the curves.
      curves: steps and values by name, colored in order; values that are not finite are left out.

    Returns:
      HTML; "" if there is nothing to draw.
    """
    thin = {name: _thin(finite(values)) for name, values in curves.items()}
    everything = [point for points in thin.values() for point in points]
    if not everything:
        return ""
    steps, values = zip(*everything, strict=True)
    ticks = choose_ticks(min(values), max(values))
    bounds = Bounds(min(steps), max(steps), ticks[0], ticks[-1])
    pieces = [_draw_grid(ticks, bounds)]
    for number, (name, points) in enumerate(thin.items()):
        pieces.append(_draw_curve(name, points, bounds, number))
    label = html.escape(title)
    legend = _write_legend(thin) if len(thin) > 1 else ""
    return (
        f"<figure class='card chart'><figcaption>{label}</figcaption>"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role=img aria-label='{label}'>{''.join(pieces)}</svg>"
        f"{legend}</figure>"
    )


def _thin(values: Series) -> Series:
    """Averages neighboring points if there are more than can be seen."""
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


def _draw_grid(ticks: list[float], bounds: Bounds) -> str:
    """Draws a line at each round value, and labels the first and the last step."""
    pieces = []
    for tick in ticks:
        y, label = bounds.down(tick), format_tick(tick, ticks[1] - ticks[0])
        pieces.append(
            f"<line x1={LEFT} x2={RIGHT} y1='{y:.1f}' y2='{y:.1f}' />"
            f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor=end>{label}</text>"
        )
    below = BOTTOM + 18
    pieces.append(f"<text x={LEFT} y={below} text-anchor=start>step {bounds.first:,}</text>")
    if bounds.last > bounds.first:
        pieces.append(f"<text x={RIGHT} y={below} text-anchor=end>{bounds.last:,}</text>")
    return "".join(pieces)


def _draw_curve(name: str, points: Series, bounds: Bounds, number: int) -> str:
    """Draws a line; if there are few points, also a dot for each that shows its value."""
    if not points:
        return ""
    color = f"var(--c{number % COLORS})"
    path = " ".join(f"{bounds.across(x):.1f},{bounds.down(y):.1f}" for x, y in points)
    line = f"<polyline points='{path}' fill=none stroke='{color}' stroke-width=1.6 />"
    if len(points) > 40:
        return line
    dots = (
        f"<circle cx='{bounds.across(x):.1f}' cy='{bounds.down(y):.1f}' r=2.5 fill='{color}'>"
        f"<title>{html.escape(name)}, step {x:,}: {format_number(y)}</title></circle>"
        for x, y in points
    )
    return line + "".join(dots)


def _write_legend(curves: Mapping[str, Series]) -> str:
    spans = (
        f"<span><i style='background: var(--c{number % COLORS})'></i>{html.escape(name)}</span>"
        for number, (name, points) in enumerate(curves.items())
        if points
    )
    return f"<div class=legend>{''.join(spans)}</div>"


def format_tick(value: float, step: float) -> str:
    """Formats a round value so that it differs from those one step away."""
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if digits > 5 or abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value + 0.0:,.{digits}f}"


def format_number(value: float) -> str:
    """Formats a number with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
