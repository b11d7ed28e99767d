"""Pictures of the tags that a model finds, next to those of the caption (IDEA, Fig. 5 and 8)."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from big_align.evaluators.exhibits.tag_texts import Fit
from big_align.evaluators.exhibits.tags import TaggedImage
from big_align.plots.retrieval_pictures import RIGHT, WRONG

COLUMNS, LINES, WIDTH = 2, 9, 46


def draw_tags(images: Sequence[TaggedImage]) -> Figure:
    """Draws images, each with its caption and the tags found with their probabilities.

    Tags in green are named by another caption of the image, those in gray by none.
    """
    rows = -(-len(images) // COLUMNS)
    figure = Figure(figsize=(10.4, 1.75 * rows), layout="constrained")
    ratios = (1, 2.2) * COLUMNS
    axes = figure.subplots(rows, 2 * COLUMNS, squeeze=False, width_ratios=ratios).reshape(-1, 2)
    for (picture, text), image in zip(axes, images, strict=False):
        picture.imshow(image.pixels)
        picture.set(xticks=[], yticks=[])
        text.set_axis_off()
        _write(text, image)
    for axis in axes[len(images) :].flat:
        axis.set_axis_off()
    return figure


def _write(axis: Axes, image: TaggedImage) -> None:
    caption = textwrap.wrap(image.caption, WIDTH, max_lines=3, placeholder=" …")
    lines: list[tuple[str, dict]] = [(line, {"style": "italic"}) for line in caption]
    for tag in image.tags:
        style = {"color": RIGHT, "weight": "bold"} if tag.confirmed else {"color": WRONG}
        lines.append((f"{tag.name}  {tag.probability:.2f}", style))
    if not image.tags:
        lines.append(("no tag found", {"color": WRONG}))
    for number, (line, style) in enumerate(lines[:LINES]):
        height = 1 - (number + 0.5) / LINES
        line = line.replace("$", r"\$")
        written = axis.text(0, height, line, fontsize=8.5, verticalalignment="center", **style)
        written.set_in_layout(False)


def draw_fits(fits: Mapping[str, Fit]) -> Figure:
    """Draws how cosines of images with texts are distributed, for texts of several kinds (Fig. 8).

    Args:
      fits: the cosines, by the name of the texts.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    every = np.concatenate([part for fit in fits.values() for part in fit])
    edges = np.linspace(every.min(), every.max(), 41)
    for number, (name, fit) in enumerate(fits.items()):
        for part, style, whose in ((fit.own, "-", "own"), (fit.other, ":", "another image's")):
            axis.hist(
                part, edges, density=True, histtype="step", color=f"C{number}", linestyle=style,
                linewidth=1.6, label=f"{name}, {whose}: mean {part.mean():.2f}",
            )  # fmt: skip
    axis.set(xlabel="cosine of image and text", ylabel="density")
    axis.legend(frameon=False, fontsize=9)
    return figure
