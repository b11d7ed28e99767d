"""The pictures of a run, as HTML."""

import html
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from big_align.pages.plots.ridges import crop_bins, trace_ridge
from big_align.pages.run_report.charts import choose_ticks, format_tick
from big_align.pages.run_report.run_record import RunRecord

STYLE = """
.ridges { max-width: 52rem; margin-top: .8rem; }
.examples { display: grid; gap: .8rem; margin-top: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
.example { padding: .7rem .8rem; } .example > p { margin-bottom: .5rem; }
.row { display: flex; gap: .6rem; align-items: flex-start; }
.row.wrap { display: grid; grid-template-columns: repeat(auto-fill,
  minmax(min(5.9rem, 28%), 1fr)); }
.row img { display: block; width: 100%; border-radius: .3rem; background: var(--mark); }
.row > figure { flex: 0 0 auto; width: 7.5rem; max-width: 33%; }
.row.wrap > figure { width: auto; max-width: none; } .row ul { margin: 0; padding: 0;
  list-style: none; font-size: .9rem; min-width: 0; } .row li { color: var(--soft);
  line-height: 1.35; margin-bottom: .35rem; }
.row li.right { color: var(--right); font-weight: 600; }
.right > img { outline: 4px solid var(--right); outline-offset: -4px; }
.query > img { outline: 2px dashed var(--soft); outline-offset: -2px; }
.confusion { width: auto; } .confusion td, .confusion th { padding: .15rem .3rem; border: 0;
  text-align: center; font-size: .8rem; white-space: nowrap; width: auto; }
.confusion td { min-width: 2.1rem; border-radius: .2rem; background: color-mix(in srgb,
  var(--bar) calc(var(--share) * 85%), var(--card)); } .confusion th:first-child {
  text-align: right; } .confusion .upright { writing-mode: vertical-rl; transform:
  rotate(180deg); vertical-align: bottom; text-align: left; padding: .3rem .1rem; }
"""
ROOM = 1_700_000
"""Most characters of pictures, so that a page stays under two megabytes."""


def write_pictures(record: RunRecord) -> Iterator[str]:
    """Writes what the last evaluation with pictures showed."""
    room = ROOM
    for evaluator, exhibits in (record.pictures.get("exhibits") or {}).items():
        for exhibit in exhibits:
            title = f"{evaluator}: {exhibit['title'][:1].lower()}{exhibit['title'][1:]}"
            note = f"{exhibit['note']} Step {record.pictures['step']:,}."
            yield f"<h2>{html.escape(title)}</h2><p class=soft>{html.escape(note)}</p>"
            written = []
            for piece in _write_exhibit(exhibit):
                written.append(piece)
                if sum(map(len, written)) > room:
                    written = ["<p>Left out: the page would be too large.</p>"]
                    break
            room -= sum(map(len, written))
            yield "".join(written)


def _write_exhibit(exhibit: Mapping[str, Any]) -> Iterator[str]:
    if "rows" in exhibit:
        yield from _write_rows(exhibit)
    elif "shares" in exhibit:
        yield _draw_distributions(exhibit)
    else:
        yield from _write_confusion(exhibit)


def _write_rows(exhibit: Mapping[str, Any]) -> Iterator[str]:
    pictured = any(item["image"] for row in exhibit["rows"] for item in row["found"])
    yield "<div class=examples>"
    yield from (_write_row(row, pictured) for row in exhibit["rows"])
    yield "</div>"


def _write_row(row: Mapping[str, Any], pictured: bool) -> str:
    """Writes a query with its text above, and what was found: pictures, or lines of text."""
    query, found = row["query"], row["found"]
    above = f"<p>{html.escape(query['text'])}</p>" if query["text"] else ""
    cells = [_write_image(query["image"], "query" * pictured)] if query["image"] else []
    cells += [_write_image(x["image"], "right" * bool(x["right"])) for x in found if x["image"]]
    lines = "".join(
        f"<li class='{'right' * bool(item['right'])}'>{html.escape(item['text'])}"
        for item in found
        if not item["image"]
    )
    if not pictured:
        cells.append(f"<ul>{lines or '<li>nothing found'}</ul>")
    kind = "row wrap" if pictured else "row"
    return f"<div class='card example'>{above}<div class='{kind}'>{''.join(cells)}</div></div>"


def _write_image(address: str, kind: str) -> str:
    return f"<figure class='{kind}'><img alt='' src='{html.escape(address)}'></figure>"


def _write_confusion(exhibit: Mapping[str, Any]) -> Iterator[str]:
    names, counts = exhibit["names"], exhibit["counts"]
    others = any(row[-1] for row in counts)
    yield "<div class=scroll><table class=confusion>"
    for name, row in zip(names, counts, strict=True):
        whole = sum(row) or 1
        cells = (
            f"<td style='--share: {count / whole:.3f}'>{count or ''}"
            for count in (row if others else row[:-1])
        )
        yield f"<tr><th>{html.escape(name)}{''.join(cells)}"
    columns = [*names, *(["others"] * others)]
    foot = "".join(f"<th class=upright>{html.escape(name)}" for name in columns)
    yield f"<tr><th>{foot}</table></div>"


LEFT, RIGHT, BAND = 90, 700, 40
"""In pixels: where ridges begin and end, and the height of a step."""
COLORS = ("c2", "c7", "c0", "c1")
"""Names of the colors of groups."""


def _draw_distributions(exhibit: Mapping[str, Any]) -> str:
    """Draws a band for each step, with an axis below and a legend."""
    edges, heights = crop_bins(np.array(exhibit["edges"]), np.array(exhibit["shares"], float))
    names = [
        (f"var(--{color})", name) for color, name in zip(COLORS, exhibit["groups"], strict=False)
    ]
    bottom, pieces = BAND * len(heights) + 6, []
    ticks = choose_ticks(float(edges[0]), float(edges[-1]))
    for tick in ticks:
        if edges[0] <= tick <= edges[-1]:
            x = LEFT + (RIGHT - LEFT) * (tick - edges[0]) / (edges[-1] - edges[0])
            label = format_tick(tick, ticks[1] - ticks[0])
            pieces.append(
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1=0 y2={bottom} />"
                f"<text x='{x:.1f}' y={bottom + 16} text-anchor=middle>{label}</text>"
            )
    for number, (step, curves) in enumerate(zip(exhibit["steps"], heights, strict=True), start=1):
        base = BAND * number
        pieces.append(f"<text x={LEFT - 10} y={base} text-anchor=end>step {step:,}</text>")
        for (color, _), curve in zip(names, curves, strict=False):
            corners = trace_ridge(curve, LEFT, RIGHT, base, 0.9 * BAND)
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            pieces.append(
                f"<polygon points='{path}' fill='{color}' fill-opacity=.45 stroke='{color}' />"
            )
    legend = "".join(
        f"<span><i style='background: {color}'></i>{html.escape(name)}</span>"
        for color, name in names
    )
    return (
        f"<figure class='card chart ridges'><svg viewBox='0 0 {RIGHT + 20} {bottom + 22}' role=img>"
        f"{''.join(pieces)}</svg><div class=legend>{legend}</div></figure>"
    )
