"""The picture of the package, from the Mermaid of CONTRIBUTING.md to SVG."""

import collections
import html
import re
from typing import Any, NamedTuple

WIDTH, BOX, HEIGHT, GAP, LEFT = 720, 92, 30, 44, 150


class Plan(NamedTuple):
    """Floors with their rooms, from the top, and the arrows between rooms."""

    floors: dict[str, list[str]]
    arrows: list[tuple[str, str]]


def read_plan(text: str) -> Plan:
    """Reads the Mermaid that `tests/house.py` writes."""
    floors: dict[str, list[str]] = {}
    arrows, title = [], ""
    for line in map(str.strip, text.splitlines()):
        if found := re.fullmatch(r'subgraph \w+\["(.*)"\]', line):
            title = found[1]
            floors[title] = []
        elif found := re.fullmatch(r"(\w+) --> (\w+)", line):
            arrows.append((found[1], found[2]))
        elif re.fullmatch(r"\w+", line) and line != "end":
            floors[title].append(line)
    return Plan(floors, arrows)


def place_rooms(plan: Plan) -> dict[str, tuple[float, float]]:
    """Returns the middle of each room: whatever imports a room of its own floor is above it."""
    middles, row = {}, 0
    for rooms in plan.floors.values():
        depth = dict.fromkeys(rooms, 0)
        for room in rooms:  # those that import come first
            for here, there in plan.arrows:
                if here == room and there in depth:
                    depth[there] = max(depth[there], depth[room] + 1)
        rows = collections.defaultdict(list)
        for room in rooms:
            rows[depth[room]].append(room)
        for level in sorted(rows):
            for n, room in enumerate(rows[level]):
                shift = (row % 2) * 60  # so that long arrows pass between the rooms of a row
                x = LEFT + shift + (n + 0.5) * (WIDTH - LEFT - 60) / len(rows[level])
                middles[room] = (x, GAP / 2 + HEIGHT / 2 + row * (HEIGHT + GAP))
            row += 1
    return middles


def draw(text: str) -> str:
    """Draws the plan as SVG whose colors are those of the page."""
    plan = read_plan(text)
    middles = place_rooms(plan)
    parts, before = [], 0.0
    for title, rooms in plan.floors.items():
        end = max(middles[room][1] for room in rooms) + HEIGHT / 2 + GAP / 2
        parts.append(f'<rect class="floor" x="0" y="{before:.0f}" width="{WIDTH}" '
                     f'height="{end - before:.0f}"/>')  # fmt: skip
        for n, line in enumerate(_wrap(title, 20)):
            parts.append(f'<text class="title" x="10" y="{before + 20 + 15 * n:.0f}">{line}</text>')
        before = end
    for here, there in plan.arrows:
        (x, y), (to_x, to_y) = middles[here], middles[there]
        y, to_y = y + HEIGHT / 2, to_y - HEIGHT / 2 - 4
        bend = (to_y - y) / 2
        path = f"M{x:.0f},{y:.0f} C{x:.0f},{y + bend:.0f} {to_x:.0f},{to_y - bend:.0f} "
        parts.append(f'<path d="{path}{to_x:.0f},{to_y:.0f}" marker-end="url(#tip)"/>')
    for room, (x, y) in middles.items():
        parts.append(f'<rect class="room" x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" '
                     f'width="{BOX}" height="{HEIGHT}" rx="4"/>')  # fmt: skip
        parts.append(f'<text class="name" x="{x:.0f}" y="{y + 5:.0f}">{room}</text>')
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="tip" d="M0,0 L8,4 L0,8 z"/></marker>'
    )
    inside = "".join((f"<defs>{tip}</defs>", *parts))
    return f'<svg viewBox="0 0 {WIDTH} {before:.0f}" role="img">{inside}</svg>'


def _wrap(title: str, width: int) -> list[str]:
    lines = [""]
    for word in title.split():
        fits = len(lines[-1]) + len(word) < width
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if fits else [*lines, word]
    return [html.escape(line) for line in lines]


def draw_fence(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """Draws a fenced block of Mermaid."""
    return f'<div class="{css_class}">{draw(source)}</div>'
