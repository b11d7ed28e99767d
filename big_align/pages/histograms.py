"""Histograms, laid out for `templates/parts.html` to draw."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEFT, RIGHT, BASE, TALL = 20, 480, 130, 110
"""The edges and the height of the bars, in pixels."""


class Bin(NamedTuple):
    """The values of a bar.

    Attributes:
      told: which values they are, and how many: shown on the bar.
      count: how many there are.
      over: how many of these are beyond a limit.
    """

    told: str
    count: int
    over: int = 0


class Bar(NamedTuple):
    """A rectangle, in pixels from the upper left; `kind` is "bar" or "over", for its color."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    told: str


class Histogram(NamedTuple):
    """Bars above an axis; positions are in pixels from the upper left.

    Attributes:
      title: title above the bars.
      bars: the bars that have values.
      ticks: x and label of each tick.
      mark: x of a vertical line, and what is written beside it; None for no line.
      noted_left: whether that is written to its left.
    """

    title: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    mark: tuple[float, str] | None
    noted_left: bool


def draw_histogram(
    title: str,
    bins: Sequence[Bin],
    ticks: Mapping[float, str],
    mark: tuple[float, str] | None = None,
    log: bool = False,
) -> Histogram:
    """Draws bars of one width.

    Args:
      title: title above the bars.
      bins: the bars, from left to right.
      ticks: labels below the axis; a position of 1.5 is in the middle of the second bar.
      mark: the position of a vertical line, and a note beside it.
      log: whether bars are as tall as the logarithms of their counts.
    """
    size = math.log1p if log else float
    tallest = max((size(each.count) for each in bins), default=0) or 1
    wide = (RIGHT - LEFT) / max(len(bins), 1)

    def across(position: float | int) -> float:
        return round(LEFT + wide * position, 1)

    bars = []
    for place, each in enumerate(bins):
        tall = TALL * size(each.count) / tallest
        split = tall * each.over / each.count if each.count else 0
        width = round(max(wide - 1.2, 0.6), 1)
        for kind, top, height in (("bar", tall, tall - split), ("over", split, split)):
            if height > 0:
                height = max(height, 1)
                top = BASE - max(top, height)
                top, height = round(top, 1), round(height, 1)
                bars.append(Bar(kind, across(place), top, width, height, each.told))
    line = mark and (across(mark[0]), mark[1])
    left = bool(mark) and mark[0] > 0.6 * len(bins)
    return Histogram(title, bars, [(across(x), text) for x, text in ticks.items()], line, left)
