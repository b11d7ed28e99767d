"""The pictures of a run, as values for a page."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from big_align.pages.charts import (
    WIDTH,
    Drawing,
    choose_ticks,
    draw_line,
    draw_path,
    format_tick,
    write_text,
)
from big_align.pages.plots.ridges import crop_bins, trace_ridge
from big_align.pages.run_report.run_record import RunRecord

ROOM = 1_700_000
"""Most characters of pictures, so that a page stays under two megabytes."""
CELL = 30
"""Characters of a cell of a table, without its number."""
LEFT, RIGHT, BAND = 98, 350, 30
"""In pixels: where ridges begin and end, and the height of a step."""
COLORS = (2, 7, 0, 1)
"""Numbers of the colors of groups."""


def list_pictures(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Yields what the last evaluation with pictures showed, and then pictures of the data.

    They have a title and a note; distributions are drawn. An exhibit has nothing else if the page
    has no room for it.
    """
    room = ROOM
    step = f" Step {record.pictures.get('step', 0):,}."
    for group, when in (("exhibits", step), ("data", "")):
        for name, exhibit in _list_exhibits(record.pictures.get(group) or {}):
            title = f"{name}: {exhibit['title'][:1].lower()}{exhibit['title'][1:]}"
            note = f"{exhibit['note']}{when}"
            kind = next(kind for kind in ("rows", "shares", "counts") if kind in exhibit)
            shown = {"kind": kind} | exhibit
            if kind == "shares":
                shown = {"kind": kind, "drawing": draw_ridges(exhibit)}
            size = len(json.dumps(exhibit)) + CELL * sum(map(len, exhibit.get("counts", ())))
            if size > room:
                shown = {"kind": "nothing"}
            else:
                room -= size
            yield shown | {"title": title, "note": note}


def _list_exhibits(group: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, exhibit) for name, exhibits in group.items() for exhibit in exhibits)


def draw_ridges(exhibit: Mapping[str, Any]) -> Drawing:
    """Draws encoded distributions: a band for each step, with an axis below."""
    edges, heights = crop_bins(np.array(exhibit["edges"]), np.array(exhibit["shares"], float))
    first, last = float(edges[0]), float(edges[-1])
    ticks, bottom, shapes = choose_ticks(first, last), BAND * len(heights) + 6, []
    for tick in ticks:
        if first <= tick <= last:
            x = round(LEFT + (RIGHT - LEFT) * (tick - first) / (last - first), 1)
            label = format_tick(tick, ticks[1] - ticks[0])
            shapes += [draw_line(x, 0, x, bottom), write_text(x, bottom + 16, label)]
    for number, (step, curves) in enumerate(zip(exhibit["steps"], heights, strict=True), start=1):
        shapes.append(write_text(LEFT - 6, BAND * number, f"step {step:,}", "end"))
        for number_of_color, curve in zip(COLORS, curves, strict=False):
            color = f"var(--c{number_of_color})"
            corners = trace_ridge(curve, LEFT, RIGHT, BAND * number, 0.9 * BAND)
            style = {"fill": color, "fill_opacity": 0.45, "stroke": color}
            shapes.append(draw_path("polygon", corners, **style))
    named = list(zip(exhibit["groups"], COLORS, strict=False))
    return Drawing("", WIDTH, bottom + 22, shapes, named)
