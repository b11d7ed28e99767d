"""Pictures of what a model finds, without a display: images, or texts beside an image."""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from big_align.evaluators.exhibits.exhibit import Examples, Finding

RIGHT, WRONG = "#1a8f3c", "#777777"


def draw_examples(several: Sequence[Examples], columns: int = 1) -> Figure:
    """Draws exhibits below one another; right answers are green.

    Queries with texts are in several columns.
    """
    most = [max(len(row.found) if row.has_images else 0 for row in x.rows) for x in several]
    counts = [-(-len(x.rows) // (1 if k else columns)) for x, k in zip(several, most, strict=True)]
    heights = [count * (1.9 if k else 1.75) for count, k in zip(counts, most, strict=True)]
    size = max(8.5, 5.2 * columns, 1.7 * max(most)), sum(heights)
    figure = Figure(figsize=size, layout="constrained")
    parts = np.atleast_1d(figure.subfigures(len(several), 1, height_ratios=heights))
    for part, examples, k, count in zip(parts, several, most, counts, strict=True):
        if k:
            grid = part.subplots(count, k, squeeze=False).tolist()
            for axes, row in zip(grid, examples.rows, strict=True):
                _draw_images(axes, row)
        else:
            _draw_texts(part, examples.rows, count, columns)
    return figure


def _draw_images(axes: list[Axes], row: Finding) -> None:
    """Draws the images that were found for a text, which is above them."""
    # The title reserves the height; the text is not part of the layout, since it would widen the
    # first column.
    axes[0].set_title(" ", fontsize=9)
    above = _escape(textwrap.shorten(f"“{row.query.text}”", 90, placeholder=" …"))
    axes[0].text(0, 1.04, above, transform=axes[0].transAxes, fontsize=9).set_in_layout(False)
    for axis in axes[len(row.found) :]:
        axis.set_axis_off()
    for axis, item in zip(axes, row.found, strict=False):
        _show(axis, item.image, bool(item.right))


def _draw_texts(
    part: Figure | SubFigure, rows: Sequence[Finding], count: int, columns: int
) -> None:
    """Draws images, each with its text and the texts that were found beside it."""
    ratios, width, least = ((1, 5), 90, 5) if columns == 1 else ((1, 2.2), 46, 9)
    axes = part.subplots(count, 2 * columns, squeeze=False, width_ratios=ratios * columns)
    for (picture, beside), row in zip(axes.reshape(-1, 2), rows, strict=False):
        _show(picture, row.query.image, False)
        lines = [
            (line, {"style": "italic"})
            for line in textwrap.wrap(row.query.text, width, max_lines=3, placeholder=" …")
        ]
        for item in row.found:
            style = {"color": RIGHT, "weight": "bold"} if item.right else {"color": WRONG}
            lines.append((textwrap.shorten(item.text, width, placeholder=" …"), style))
        if not row.found:
            lines.append(("nothing found", {"color": WRONG}))
        for number, (line, style) in enumerate(lines):
            height = 1 - (number + 0.5) / max(len(lines), least)
            style |= {"fontsize": 8.5, "verticalalignment": "center"}
            beside.text(0, height, _escape(line), **style).set_in_layout(False)
        beside.set_axis_off()
    for axis in axes.reshape(-1, 2)[len(rows) :].flat:
        axis.set_axis_off()


def _escape(text: str) -> str:
    return text.replace("$", r"\$")


def _show(axis: Axes, pixels: UInt8[np.ndarray, "h w 3"], right: bool) -> None:
    axis.imshow(pixels)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color=RIGHT if right else WRONG, linewidth=4 if right else 0.5)
