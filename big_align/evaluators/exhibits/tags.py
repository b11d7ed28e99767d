"""Tags that a model finds in images, next to those of the caption (IDEA, Fig. 5)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item
from big_align.evaluators.exhibits.pixels import Pixels


class Found(NamedTuple):
    """What a model finds in the readable images of a set."""

    logits: Float[np.ndarray, "n c"]
    given: Bool[np.ndarray, "n c"]  # the tags of the given captions
    missed: Bool[np.ndarray, "n c"]  # those that only the other captions have
    found: Bool[np.ndarray, "n c"]  # those that the model chooses, without given ones
    captions: list[list[str]]  # the given ones of each image
    number: Int[np.ndarray, " n"]  # the source's example for each row


def choose_images(found: Found, count: int, seed: int) -> list[int]:
    """Draws rows of up to `count` images, preferring those in which a tag is found."""
    order = np.random.default_rng(seed).permutation(len(found.number))
    nothing = ~found.found[order].any(axis=1)
    return order[np.argsort(nothing, kind="stable")][:count].tolist()


def show_found(
    found: Found, names: Sequence[str], pixels: Pixels, count: int = 8, most: int = 6, seed: int = 0
) -> list[Examples]:
    """Shows up to `most` tags that are found in each of a few images, most probable first."""
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
