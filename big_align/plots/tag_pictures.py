"""Pictures of the tags that a model finds beside those of the caption (IDEA, Fig. 5)."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from big_align.evaluators.found_tags import Found
from big_align.plots.retrieval_pictures import RIGHT, WRONG, Pixels

COLUMNS, LINES, WIDTH = 2, 9, 46


class FoundTag(NamedTuple):
    """A tag that a model finds in an image.

    Attributes:
      name: of the tag.
      probability: by the model.
      confirmed: whether another caption of the image names it.
    """

    name: str
    probability: float
    confirmed: bool


class TaggedImage(NamedTuple):
    """An image with a caption and the tags found, the most probable first."""

    pixels: UInt8[np.ndarray, "h w 3"]
    caption: str
    tags: list[FoundTag]


def choose_images(found: Found, count: int, seed: int) -> list[int]:
    """Draws images, first those in which a tag is found.

    Args:
      found: what to draw from.
      count: how many at most.
      seed: the same seed draws the same.

    Returns:
      Rows of `found`.
    """
    order = np.random.default_rng(seed).permutation(len(found.number))
    nothing = ~found.found[order].any(axis=1)
    return order[np.argsort(nothing, kind="stable")][:count].tolist()


def describe_image(
    found: Found, row: int, names: Sequence[str], pixels: Pixels, most: int = 6
) -> TaggedImage:
    """Collects what is shown of an image.

    Args:
      found: what a model found.
      row: of `found`.
      names: of all tags.
      pixels: gives the picture of an example by its number.
      most: tags that are shown, the most probable.
    """
    logits = found.logits[row]
    ids = np.flatnonzero(found.found[row])
    ids = ids[np.argsort(-logits[ids], kind="stable")][:most]
    tags = [
        FoundTag(names[tag], float(1 / (1 + np.exp(-logits[tag]))), bool(found.missed[row, tag]))
        for tag in ids.tolist()
    ]
    return TaggedImage(pixels(int(found.number[row])), " / ".join(found.captions[row]), tags)


def draw_tags(images: Sequence[TaggedImage]) -> Figure:
    """Draws images, and beside each its caption and the tags found with their probabilities.

    Those in green are named by another caption of the image, those in gray by none.
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
