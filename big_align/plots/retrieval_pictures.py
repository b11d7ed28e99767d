"""Pictures of what a model retrieves, without a display."""

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from big_align.evaluators.exhibits.pixels import Pixels
from big_align.evaluators.exhibits.retrieval import Pairs, find_nearest, find_nearest_captions

RIGHT, WRONG = "#1a8f3c", "#777777"


def draw_nearest_images(
    figure: Figure | SubFigure, pairs: Pairs, pixels: Pixels, queries: Sequence[int], k: int = 5
) -> None:
    """Draws a row for each caption: its k nearest images, with its own framed in green.

    Args:
      figure: where to draw.
      pairs: the pairs to search.
      pixels: returns the picture of an example, given its number.
      queries: rows of `pairs.ztxt`.
      k: number of images.
    """
    rows = figure.subplots(len(queries), k, squeeze=False)
    nearest = find_nearest(pairs.ztxt[list(queries)], pairs.zimg, k)
    for axes, query, found in zip(rows, queries, nearest, strict=True):
        # The title reserves the height; the text is not part of the layout, since it would widen
        # the first column.
        axes[0].set_title(" ", fontsize=9)
        text = _shorten(f"“{pairs.captions[query]}”", 90)
        axes[0].text(0, 1.04, text, transform=axes[0].transAxes, fontsize=9).set_in_layout(False)
        for axis in axes[len(found) :]:
            axis.set_axis_off()
        for axis, image in zip(axes, found.tolist(), strict=False):
            right = pairs.captions[query] in pairs.captions_of(image)
            _show(axis, pixels(int(pairs.number[image])), RIGHT if right else None)


def draw_nearest_captions(
    figure: Figure | SubFigure, pairs: Pairs, pixels: Pixels, queries: Sequence[int], k: int = 5
) -> None:
    """Draws a row for each image: it and its k nearest captions, with its own in green.

    Args:
      figure: where to draw.
      pairs: the pairs to search.
      pixels: returns the picture of an example, given its number.
      queries: rows of `pairs.zimg`.
      k: number of different captions.
    """
    rows = figure.subplots(len(queries), 2, squeeze=False, width_ratios=(1, 5))
    for (picture, text), query in zip(rows, queries, strict=True):
        _show(picture, pixels(int(pairs.number[query])), None)
        text.set_axis_off()
        own = pairs.captions_of(query)
        captions = find_nearest_captions(pairs, query, k)
        for line, caption in enumerate(captions):
            text.text(
                0.0,
                1 - (line + 0.5) / k,
                _shorten(caption, 90),
                color=RIGHT if caption in own else WRONG,
                weight="bold" if caption in own else "normal",
                fontsize=9,
                verticalalignment="center",
            )


def draw_retrieval(
    pairs: Pairs, pixels: Pixels, images: Sequence[int], captions: Sequence[int], k: int = 5
) -> Figure:
    """Draws captions with their nearest images, and below images with their nearest captions.

    Args:
      pairs: the pairs to search.
      pixels: returns the picture of an example, given its number.
      images: rows of `pairs.zimg`.
      captions: rows of `pairs.ztxt`.
      k: number of nearest ones to show.
    """
    heights = 1.9 * len(captions), 1.7 * len(images)
    figure = Figure(figsize=(1.7 * k, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    draw_nearest_images(above, pairs, pixels, captions, k)
    draw_nearest_captions(below, pairs, pixels, images, k)
    return figure


def _shorten(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" …").replace("$", r"\$")


def _show(axis: Axes, pixels: UInt8[np.ndarray, "h w 3"], frame: str | None) -> None:
    axis.imshow(pixels)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color=frame or WRONG, linewidth=4 if frame else 0.5)
