"""Histograms whose bars show what they count."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from big_align.pages.charts import WIDTH, Drawing, Place, Shape, draw_line, write_text

LEFT, RIGHT, BASE, TALL = 14, 346, 130, 110
"""The edges and the height of the bars, in pixels."""


class Bin(NamedTuple):
    """The values of a bar; `told` says which they are, and how many, on the bar."""

    told: str
    count: int
    over: int = 0  # how many of these are beyond a limit


def draw_histogram(
    title: str,
    bins: Sequence[Bin],
    ticks: Mapping[float, str],
    mark: tuple[float, str] | None = None,
    log: bool = False,
) -> Drawing:
    """Draws bars of one width, with labels below and perhaps a vertical line with a note.

    The position of 1.5 is in the middle of the second bar. With `log`, bars are as tall as the
    logarithms of their counts.
    """
    size = math.log1p if log else float
    tallest = max((size(each.count) for each in bins), default=0) or 1
    wide = (RIGHT - LEFT) / max(len(bins), 1)

    def across(position: Place) -> float:
        return round(LEFT + wide * position, 1)

    shapes = []
    for place, each in enumerate(bins):
        tall = TALL * size(each.count) / tallest
        split = tall * each.over / each.count if each.count else 0
        for kind, top, height in (("bar", tall, tall - split), ("over", split, split)):
            if height > 0:
                height = round(max(height, 1), 1)
                top = round(BASE - max(top, height), 1)
                box = {"x": across(place), "y": top, "width": round(max(wide - 1.2, 0.6), 1)}
                fields = {"class": kind, "height": height, "rx": 1, **box}
                shapes.append(Shape("rect", fields, each.told))
    shapes.append(draw_line(LEFT, BASE + 0.5, RIGHT, BASE + 0.5))
    shapes += [write_text(across(position), 147, label) for position, label in ticks.items()]
    if mark:
        x, left = across(mark[0]), mark[0] > 0.6 * len(bins)
        shapes.append(draw_line(x, 8, x, BASE, **{"class": "mark"}))
        where = (x - 4, 16, mark[1], "end") if left else (x + 4, 16, mark[1], "start")
        shapes.append(write_text(*where, **{"class": "note"}))
    return Drawing(title, WIDTH, 155, shapes)
