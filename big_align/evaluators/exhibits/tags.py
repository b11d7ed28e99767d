"""Tags that a model finds in images, next to those of the caption (IDEA, Fig. 5)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item
from big_align.evaluators.exhibits.pixels import Pixels


class Found(NamedTuple):
    """What a model finds in the readable images of a set.

    Attributes:
      logits: logit of each tag.
      given: the tags of the given captions.
      missed: the tags that only the other captions have.
      found: the tags that the model chooses, without given ones.
      captions: the given captions of each image.
      number: the source's example for each row.
    """

    logits: Float[np.ndarray, "n c"]
    given: Bool[np.ndarray, "n c"]
    missed: Bool[np.ndarray, "n c"]
    found: Bool[np.ndarray, "n c"]
    captions: list[list[str]]
    number: Int[np.ndarray, " n"]


class FoundTag(NamedTuple):
    """A tag that a model finds in an image.

    Attributes:
      name: name of the tag.
      probability: probability according to the model.
      confirmed: whether another caption of the image names it.
    """

    name: str
    probability: float
    confirmed: bool


class TaggedImage(NamedTuple):
    """An image with a caption and the tags found, most probable first."""

    pixels: UInt8[np.ndarray, "h w 3"]
    caption: str
    tags: list[FoundTag]


def choose_images(found: Found, count: int, seed: int) -> list[int]:
    """Draws images, preferring those in which a tag is found.

    Args:
      found: the images to draw from.
      count: largest number of images.
      seed: seed of the draw.

    Returns:
      Rows of `found`.
    """
    order = np.random.default_rng(seed).permutation(len(found.number))
    nothing = ~found.found[order].any(axis=1)
    return order[np.argsort(nothing, kind="stable")][:count].tolist()


def describe_image(
    found: Found, row: int, names: Sequence[str], pixels: Pixels, most: int = 6
) -> TaggedImage:
    """Collects what to show about an image.

    Args:
      found: what a model found.
      row: row of `found`.
      names: names of all tags.
      pixels: returns the picture of an example, given its number.
      most: number of tags to show, most probable first.
    """
    logits = found.logits[row]
    ids = np.flatnonzero(found.found[row])
    ids = ids[np.argsort(-logits[ids], kind="stable")][:most]
    tags = [
        FoundTag(names[tag], float(1 / (1 + np.exp(-logits[tag]))), bool(found.missed[row, tag]))
        for tag in ids.tolist()
    ]
    return TaggedImage(pixels(int(found.number[row])), " / ".join(found.captions[row]), tags)


def show_found(
    found: Found, names: Sequence[str], pixels: Pixels, count: int = 8, most: int = 6, seed: int = 0
) -> list[Examples]:
    """Shows the tags found in a few images, preferring images in which any is found.

    Args:
      found: what a model found.
      names: names of all tags.
      pixels: returns the picture of an example, given its number.
      count: number of images to show.
      most: number of tags of each, most probable first.
      seed: seed for choosing the images.
    """
    rows = []
    for row in choose_images(found, count, seed):
        image = describe_image(found, row, names, pixels, most)
        tags = [Item(text=f"{t.name} {t.probability:.2f}", right=t.confirmed) for t in image.tags]
        rows.append(Finding(Item(image.pixels, image.caption), tags))
    note = (
        "Each tag with its probability. Beside the image is the given caption, whose own tags are "
        "left out; a tag in green is in another caption of the image."
    )
    return [Examples("Found tags", note, rows)]
