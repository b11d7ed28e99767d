"""Tags that a model finds in images, next to those of the caption (IDEA, Fig. 5)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

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
        logits, ids = found.logits[row], np.flatnonzero(found.found[row])
        probable = ids[np.argsort(-logits[ids], kind="stable")][:most].tolist()
        tags = [
            Item(
                text=f"{names[tag]} {1 / (1 + np.exp(-logits[tag])):.2f}",
                right=bool(found.missed[row, tag]),
            )
            for tag in probable
        ]
        query = Item(pixels(int(found.number[row])), " / ".join(found.captions[row]))
        rows.append(Finding(query, tags))
    note = (
        "Each tag with its probability. Beside the image is the given caption, whose own tags are "
        "left out; a tag in green is in another caption of the image."
    )
    return [Examples("Found tags", note, rows)]
