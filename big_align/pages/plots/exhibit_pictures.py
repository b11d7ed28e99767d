"""Pictures of exhibits as pixels, made in milliseconds, for the logs of a run."""

import functools
import os

import matplotlib
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from big_align.evaluators.exhibits.exhibit import (
    Confusion,
    Distributions,
    Examples,
    Exhibit,
    Finding,
)
from big_align.pages.plots.ridges import crop_bins, trace_ridge
from big_align.pages.plots.shades import shade_confusion

CELL, GAP, LINE, SIZE, WIDTH = 128, 10, 20, 14, 980
"""In pixels: side of an image, gap between images, line height, font size, and total width."""
INK, RIGHT, WRONG, BLUE = (20, 20, 20), (26, 143, 60), (119, 119, 119), (8, 81, 156)
HIT, MISS = (111, 152, 214), (238, 138, 76)


def draw_exhibit(exhibit: Exhibit) -> UInt8[np.ndarray, "h w 3"]:
    """Draws an exhibit on white; right answers are green."""
    draw = {Confusion: _draw_confusion, Distributions: _draw_distributions}
    return np.asarray(draw.get(type(exhibit), _draw_examples)(exhibit))


@functools.cache
def _font(name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    return ImageFont.truetype(path, SIZE)


def _draw_examples(examples: Examples) -> Image.Image:
    """Draws a band for each query: its text, its picture, and next to it what was found."""
    tops = np.cumsum([2 * GAP + LINE, *map(_height_of, examples.rows)]).tolist()
    cells = max((1 + len(row.found) for row in examples.rows if row.has_images), default=0)
    wide = max(WIDTH, GAP + cells * (CELL + GAP))
    picture = Image.new("RGB", (wide, tops[-1] + GAP), "white")
    pen = ImageDraw.Draw(picture)
    _write(pen, GAP, GAP, examples.title, INK, "DejaVuSans-Bold")
    for top, row in zip(tops, examples.rows, strict=False):
        if row.query.text:
            _write(pen, GAP, top, row.query.text, INK)
            top += LINE
        left = GAP
        images = [row.query, *row.found] if row.query.image is not None else row.found
        for item in images:
            if item.image is None:
                continue
            cell = Image.fromarray(item.image).resize((CELL, CELL), Image.Resampling.BILINEAR)
            picture.paste(cell, (left, top))
            if item.right:
                pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), None, RIGHT, 4)
            left += CELL + GAP
        for line, item in enumerate(item for item in row.found if item.image is None):
            color, face = (RIGHT, "DejaVuSans-Bold") if item.right else (WRONG, "DejaVuSans")
            _write(pen, left, top + LINE * line, item.text, color, face)
    return picture


def _height_of(row: Finding) -> int:
    lines = sum(item.image is None for item in row.found)
    cell = CELL if any(item.image is not None for item in (row.query, *row.found)) else 0
    return LINE * bool(row.query.text) + max(cell, LINE * lines, LINE) + GAP


def _draw_confusion(confusion: Confusion) -> Image.Image:
    """Draws a matrix in which right answers are blue and errors orange."""
    strengths = shade_confusion(confusion.counts)
    counts = confusion.counts if confusion.counts[:, -1].any() else confusion.counts[:, :-1]
    names, cell, top = confusion.names, 34, 2 * GAP + LINE
    wide = max([60, *(int(_font().getlength(_shorten(name, 160))) for name in names)])
    left, bottom = 2 * GAP + wide, top + cell * len(names)
    size = max(left + cell * counts.shape[1] + GAP, 400), bottom + wide + 2 * GAP
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    _write(pen, GAP, GAP, confusion.title, INK, "DejaVuSans-Bold")
    for row, name in enumerate(names):
        _write(pen, GAP, top + cell * row + 8, _shorten(name, 160), INK)
        for column, count in enumerate(counts[row].tolist()):
            color = HIT if row == column else MISS
            fill = tuple(round(255 + (c - 255) * strengths[row, column]) for c in color)
            x, y = left + cell * column, top + cell * row
            pen.rectangle((x, y, x + cell - 2, y + cell - 2), fill)
            if count:
                middle = x + cell / 2 - 1, y + cell / 2 - 1
                pen.text(middle, str(count), INK, _font(), anchor="mm")
    for column in range(counts.shape[1]):
        label = Image.new("RGB", (wide, LINE), "white")
        name = _shorten(names[column], 160) if column < len(names) else "others"
        ImageDraw.Draw(label).text((wide, 1), name, INK, _font(), anchor="ra")
        upright = label.transpose(Image.Transpose.ROTATE_90)
        picture.paste(upright, (left + cell * column + 6, bottom + 4))
    return picture


BAND, LEFT = 40, 130
"""In pixels: height of a step in a picture of distributions, and where its curves begin."""


def _draw_distributions(shown: Distributions) -> Image.Image:
    """Draws a band for each step, with a curve for each group; the newest at the bottom."""
    edges, heights = crop_bins(np.array(shown.edges), shown.shares)
    top, right = 2 * GAP + 2 * LINE, WIDTH - 4 * GAP
    bottom = top + BAND * len(heights)
    picture = Image.new("RGB", (WIDTH, bottom + LINE + GAP), "white")
    pen = ImageDraw.Draw(picture, "RGBA")
    _write(pen, GAP, GAP, shown.title, INK, "DejaVuSans-Bold")
    left = LEFT
    for color, name in zip((RIGHT, WRONG, BLUE), shown.groups, strict=False):
        pen.rectangle((left, GAP + LINE + 3, left + 12, GAP + LINE + 15), (*color, 150))
        _write(pen, left + 18, GAP + LINE, name, INK)
        left += 38 + int(_font().getlength(name))
    for number, (step, curves) in enumerate(zip(shown.steps, heights, strict=True), start=1):
        base = top + BAND * number
        _write(pen, GAP, base - LINE, f"step {step:,}", INK)
        for color, curve in zip((RIGHT, WRONG, BLUE), curves, strict=False):
            corners = trace_ridge(curve, LEFT, right, base, 0.9 * BAND)
            pen.polygon(corners, (*color, 100), (*color, 255))
    for part in np.linspace(0, 1, 5).tolist():
        x = LEFT + (right - LEFT) * part
        value = edges[0] + (edges[-1] - edges[0]) * part
        pen.text((x, bottom + 4), f"{value:.2f}", INK, _font(), anchor="ma")
    return picture


def _shorten(text: str, width: int, face: str = "DejaVuSans") -> str:
    """Returns a text that fits into a width, shortened if necessary."""
    kept = text
    while kept and _font(face).getlength(kept + "…" * (kept != text)) > width:
        kept = kept[:-1]
    return kept if kept == text else f"{kept.rstrip()}…"


def _write(
    pen: ImageDraw.ImageDraw, left: int, top: int, text: str, color: tuple, face: str = "DejaVuSans"
) -> None:
    text = _shorten(" ".join(text.split())[:200], WIDTH - GAP - left, face)
    pen.text((left, top), text, color, _font(face))
