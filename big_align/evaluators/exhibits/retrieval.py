"""Captions with their nearest images, and images with their nearest captions."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item
from big_align.evaluators.exhibits.pixels import Pixels


class Pairs(NamedTuple):
    """The embedded images and captions of a set: those of the readable images, each image once."""

    zimg: Float[np.ndarray, "n d"]
    ztxt: Float[np.ndarray, "m d"]
    captions: list[str]  # the texts of `ztxt`
    owner: Int[np.ndarray, "m"]  # the row of `zimg` that each caption belongs to
    number: Int[np.ndarray, "n"]  # the source's example for each row of `zimg`

    def captions_of(self, image: int) -> set[str]:
        """Returns the captions of a row of `zimg`."""
        return {self.captions[row] for row in np.flatnonzero(self.owner == image).tolist()}


def find_nearest(
    queries: Float[np.ndarray, "q d"], candidates: Float[np.ndarray, "n d"], k: int
) -> Int[np.ndarray, "q k"]:
    """Returns the k candidates with the largest cosine for each query, nearest first."""
    return np.argsort(-queries @ candidates.T, axis=1, kind="stable")[:, :k]


def find_nearest_captions(pairs: Pairs, image: int, k: int) -> list[str]:
    """Returns the k nearest captions of a row of `zimg` with different words, nearest first."""
    (found,) = find_nearest(pairs.zimg[[image]], pairs.ztxt, len(pairs.ztxt))
    return list(dict.fromkeys(pairs.captions[row] for row in found.tolist()))[:k]


def choose_queries(pairs: Pairs, count: int, seed: int) -> tuple[list[int], list[int]]:
    """Draws images, and captions without two of the same words: of other images, if these suffice.

    They are rows of `zimg` and of `ztxt`, at most `count` of each.
    """
    rng = np.random.default_rng(seed)
    images = rng.permutation(len(pairs.zimg))[:count].tolist()
    texts: dict[str, int] = {}
    rows = rng.permutation(len(pairs.captions)).tolist()
    for row in sorted(rows, key=lambda row: pairs.owner[row] in images):
        if len(texts) < count:
            texts.setdefault(pairs.captions[row], row)
    return images, list(texts.values())


def show_pairs(
    pairs: Pairs, pixels: Pixels, count: int = 4, k: int = 5, seed: int = 0
) -> list[Examples]:
    """Shows the k that are nearest to a few captions and to as many images."""
    images, captions = choose_queries(pairs, count, seed)
    nearest = find_nearest(pairs.ztxt[captions], pairs.zimg, k)
    by_text = [
        Finding(
            Item(text=pairs.captions[query]),
            [
                Item(
                    pixels(int(pairs.number[image])),
                    right=pairs.captions[query] in pairs.captions_of(image),
                )
                for image in found.tolist()
            ],
        )
        for query, found in zip(captions, nearest, strict=True)
    ]
    by_image = [
        Finding(
            Item(pixels(int(pairs.number[image]))),
            [
                Item(text=text, right=text in pairs.captions_of(image))
                for text in find_nearest_captions(pairs, image, k)
            ],
        )
        for image in images
    ]
    note = "Right answers are marked in green. The queries are drawn at random."
    shown = Examples("Captions with their nearest images", note, by_text)
    return [shown, Examples("Images with their nearest captions", note, by_image)]
