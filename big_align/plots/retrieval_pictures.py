"""Pictures of what a model retrieves, without a display."""

import random
import textwrap
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from big_align.data import boundary
from big_align.data.examples import Source
from big_align.data.images.image_ops import Transform
from big_align.evaluators.retrieval import Pairs

Pixels = Callable[[int], UInt8[np.ndarray, "h w 3"]]
RIGHT, WRONG = "#1a8f3c", "#777777"


def find_nearest(
    queries: Float[np.ndarray, "q d"], candidates: Float[np.ndarray, "n d"], k: int
) -> Int[np.ndarray, "q k"]:
    """Returns the k candidates with the largest cosine for each query, the nearest first."""
    return np.argsort(-queries @ candidates.T, axis=1, kind="stable")[:, :k]


def choose_queries(pairs: Pairs, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Draws images, and captions of other images, no two captions with the same words.

    Args:
      pairs: what to draw from.
      count: how many of each at most.
      seed: the same seed draws the same.

    Returns:
      Rows of `zimg` and rows of `ztxt`.
    """
    rng = np.random.default_rng(seed)
    images = rng.permutation(len(pairs.zimg))[:count].tolist()
    texts: dict[str, int] = {}
    for row in rng.permutation(len(pairs.captions)).tolist():
        if len(texts) < count and pairs.owner[row] not in images:
            texts.setdefault(pairs.captions[row], row)
    return images, list(texts.values())


def read_pixels(source: Source, size: int = 160) -> Pixels:
    """Returns a function that reads the middle of the example of a number as a square picture.

    It raises UserError where it cannot be read.
    """
    show = Transform(f"resize_small({size})|central_crop({size})")
    ends = np.cumsum(source.shard_sizes)

    def read(number: int) -> UInt8[np.ndarray, "h w 3"]:
        shard = int(np.searchsorted(ends, number, side="right"))
        index = int(number - ends[shard] + source.shard_sizes[shard])
        with boundary.name_example(source, shard, index):
            return show(source.read(shard, index).image, random.Random(0))

    return read


def draw_nearest_images(
    figure: Figure | SubFigure, pairs: Pairs, pixels: Pixels, queries: Sequence[int], k: int = 5
) -> None:
    """Draws a row for each caption: its k nearest images, those that it describes framed in green.

    Args:
      figure: where to draw.
      pairs: what is searched.
      pixels: gives the picture of an example by its number.
      queries: rows of `pairs.ztxt`.
      k: how many images.
    """
    rows = figure.subplots(len(queries), k, squeeze=False)
    nearest = find_nearest(pairs.ztxt[list(queries)], pairs.zimg, k)
    for axes, query, found in zip(rows, queries, nearest, strict=True):
        # The title keeps the height free; the text is left out of the layout, which would widen
        # the first column by it.
        axes[0].set_title(" ", fontsize=9)
        text = _shorten(f"“{pairs.captions[query]}”", 90)
        axes[0].text(0, 1.04, text, transform=axes[0].transAxes, fontsize=9).set_in_layout(False)
        for axis in axes[len(found) :]:
            axis.set_axis_off()
        for axis, image in zip(axes, found.tolist(), strict=False):
            right = pairs.captions[query] in _captions_of(pairs, image)
            _show(axis, pixels(int(pairs.number[image])), RIGHT if right else None)


def draw_nearest_captions(
    figure: Figure | SubFigure, pairs: Pairs, pixels: Pixels, queries: Sequence[int], k: int = 5
) -> None:
    """Draws a row for each image: it and its k nearest captions, its own ones in green.

    Args:
      figure: where to draw.
      pairs: what is searched.
      pixels: gives the picture of an example by its number.
      queries: rows of `pairs.zimg`.
      k: how many different captions.
    """
    rows = figure.subplots(len(queries), 2, squeeze=False, width_ratios=(1, 5))
    nearest = find_nearest(pairs.zimg[list(queries)], pairs.ztxt, len(pairs.ztxt))
    for (picture, text), query, found in zip(rows, queries, nearest, strict=True):
        _show(picture, pixels(int(pairs.number[query])), None)
        text.set_axis_off()
        own = _captions_of(pairs, query)
        captions = list(dict.fromkeys(pairs.captions[row] for row in found.tolist()))[:k]
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
    """Draws captions with their nearest images, and below them images with their nearest captions.

    Args:
      pairs: what is searched.
      pixels: gives the picture of an example by its number.
      images: rows of `pairs.zimg`.
      captions: rows of `pairs.ztxt`.
      k: how many of the nearest.
    """
    heights = 1.9 * len(captions), 1.7 * len(images)
    figure = Figure(figsize=(1.7 * k, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    draw_nearest_images(above, pairs, pixels, captions, k)
    draw_nearest_captions(below, pairs, pixels, images, k)
    return figure


def _captions_of(pairs: Pairs, image: int) -> set[str]:
    return {pairs.captions[row] for row in np.flatnonzero(pairs.owner == image).tolist()}


def _shorten(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" …").replace("$", r"\$")


def _show(axis: Axes, pixels: UInt8[np.ndarray, "h w 3"], frame: str | None) -> None:
    axis.imshow(pixels)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color=frame or WRONG, linewidth=4 if frame else 0.5)
