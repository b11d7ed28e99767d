"""Curves over the steps of a run, and other drawings, as shapes that `parts.html` writes."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from big_align.pages.rendering import format_number

Series = list[tuple[int, float]]
"""Steps, ascending, and values."""
Place = float | int
"""A position, in pixels from the left or from above."""
COLORS = 8
"""Number of colors of the page: --c0 and so on."""
POINTS = 240
"""Most points of a curve; if there are more, they are averaged."""
DOTS = 40
"""Most points of a curve that are shown as dots, with their values."""
WIDTH, HEIGHT = 360, 170
"""Size of a chart; no drawing is wider, so that its labels can be read on a phone."""
LEFT, RIGHT, TOP, BOTTOM = 52, 354, 10, 146
"""The edges of the plotting area of a chart, in pixels."""
LETTER = 5.5
"""About the width of a digit of a label."""
LARGEST = 1e300
"""Numbers beyond this are drawn like infinity: their sums and differences may be infinite."""
SMALLEST = 1e-300
"""Differences below this are nothing: floats have no tenth of them."""


class Shape(NamedTuple):
    """An element of an SVG picture, with its attributes; positions are pixels from the upper left.

    The text is what a text says, or what is shown where a pointer is on another shape.
    """

    tag: str
    fields: dict[str, Any]
    text: str = ""


class Drawing(NamedTuple):
    """An SVG picture with a title above, and names with the numbers of their colors below."""

    title: str
    width: int
    height: int
    shapes: list[Shape]
    legend: Sequence[tuple[str, int]] = ()


def draw_line(x1: Place, y1: Place, x2: Place, y2: Place, **fields: str) -> Shape:
    """Draws a straight line."""
    return Shape("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, **fields})


def write_text(x: Place, y: Place, text: str, anchor: str = "middle", **fields: str) -> Shape:
    """Writes a text whose start, middle or end is at x."""
    return Shape("text", {"x": x, "y": y, "text-anchor": anchor, **fields}, text)


def draw_path(tag: str, corners: Iterable[tuple[Place, Place]], **fields: Any) -> Shape:
    """Draws a polyline or a polygon."""
    points = " ".join(f"{round(x, 1)},{round(y, 1)}" for x, y in corners)
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return Shape(tag, {"points": points, **named})


def draw_chart(
    title: str, curves: Mapping[str, Series], marks: Sequence[int] = ()
) -> Drawing | None:
    """Draws curves over the steps, colored in order; returns None if there is nothing to draw.

    Values that are not finite are left out. After each of the steps in `marks` another stage
    begins: a vertical line is there, and a short stage is drawn wider than it is.
    """
    thin = {name: _thin(values) for name, values in curves.items()}
    everything = [point for points in thin.values() for point in points]
    if not everything:
        return None
    steps, values = zip(*everything, strict=True)
    first, last = min(steps), max(steps)
    ticks = choose_ticks(min(values), max(values))

    inner = [mark + 0.5 for mark in marks if first <= mark < last]
    edges = [first, *inner, last]
    places = _share_width(edges)

    def across(step: Place) -> float:
        part = float(np.interp(step, edges, places)) if last > first else 0.5
        return round(LEFT + 6 + (RIGHT - LEFT - 12) * part, 1)

    def down(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - ticks[0]) / (ticks[-1] - ticks[0]), 1)

    shapes = []
    for tick in ticks:
        y, label = down(tick), format_tick(tick, ticks[1] - ticks[0])
        shapes += [draw_line(LEFT, y, RIGHT, y), write_text(LEFT - 6, y + 4, label, "end")]
    free = RIGHT - LETTER * len(f"{last:,}")
    for mark in reversed(inner):
        shapes.append(draw_line(x := across(mark), TOP, x, BOTTOM))
        label = f"{math.floor(mark):,}"
        half = LETTER * (len(label) + 1) / 2
        if LEFT + LETTER * len(f"step {first:,}") < x - half and x + half < free:
            shapes.append(write_text(x, BOTTOM + 18, label))
            free = x - half
    shapes.append(write_text(LEFT, BOTTOM + 18, f"step {first:,}", "start"))
    if last > first:
        shapes.append(write_text(RIGHT, BOTTOM + 18, f"{last:,}", "end"))
    for number, (name, points) in enumerate(thin.items()):
        color = f"var(--c{number % COLORS})"
        corners = [(across(step), down(value)) for step, value in points]
        line = {"fill": "none", "stroke": color, "stroke_width": 1.6}
        shapes += [draw_path("polyline", corners, **line)] if points else []
        if len(points) <= DOTS:
            for (x, y), (step, value) in zip(corners, points, strict=True):
                told = f"{name}, step {step:,}: {format_number(value)}"
                shapes.append(Shape("circle", {"cx": x, "cy": y, "r": 2.5, "fill": color}, told))
    named = [(name, n % COLORS) for n, (name, points) in enumerate(thin.items()) if points]
    return Drawing(title, WIDTH, HEIGHT, shapes, named if len(thin) > 1 else ())


def _share_width(edges: Sequence[Place]) -> list[float]:
    """Returns where the edges of parts lie between 0 and 1: each has a third of its fair share."""
    widths = [b - a for a, b in itertools.pairwise(edges)]
    least = sum(widths) / (3 * len(widths))
    ends = list(itertools.accumulate((max(width, least) for width in widths), initial=0.0))
    return [end / (ends[-1] or 1.0) for end in ends]


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
