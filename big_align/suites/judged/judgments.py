"""Human judgments of images and texts, with each image and text stored once."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from big_align.data.examples import Source


class Numbering:
    """Gives each item a number when it is first seen."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def add(self, item: str) -> int:
        """Returns the number of an item."""
        return self._numbers.setdefault(item, len(self._numbers))

    @property
    def items(self) -> tuple[str, ...]:
        """The items in the order of their numbers."""
        return tuple(self._numbers)


@dataclasses.dataclass(frozen=True)
class Choices:
    """Cases in which the right image or text is chosen from a few.

    If a case has one image, the first of its texts is right; if it has two, the first text belongs
    to the first image, and the second to the second.
    """

    source: Source
    texts: tuple[str, ...]  # all of them
    image: Int[np.ndarray, "n i"]
    text: Int[np.ndarray, "n t"]
    category: tuple[str, ...]  # of each case; "" if it has none
    averaged: tuple[str, ...] = ()  # the categories whose mean is published
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def digest(self) -> str:
        """Returns a text that changes if any case changes."""
        told = [self.texts, self.category, self.averaged, dict(self.groups)]
        return _digest(told, self.image, self.text)


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Pairs of items, and how similar people found them."""

    pair: Int[np.ndarray, "n 2"]
    rating: Float[np.ndarray, "n"]
    positive: float = float("inf")  # the least rating of a pair that belongs together


@dataclasses.dataclass(frozen=True)
class RatedCaptions:
    """Images and captions with ratings of pairs of them (Crisscrossed Captions)."""

    source: Source
    texts: tuple[str, ...]
    owner: Int[np.ndarray, "m"]  # the image of each caption
    sts: Ratings  # of two captions
    sis: Ratings  # of two images
    sits: Ratings  # of a caption and an image

    def digest(self) -> str:
        """Returns a text that changes if any rating changes."""
        rated = [self.sts, self.sis, self.sits]
        arrays = [array for ratings in rated for array in (ratings.pair, ratings.rating)]
        return _digest([self.texts, [x.positive for x in rated]], self.owner, *arrays)


@dataclasses.dataclass(frozen=True)
class RatedWords:
    """Pairs of words with their similarity (SimLex-999)."""

    texts: tuple[str, ...]
    ratings: Ratings
    subsets: Mapping[str, Int[np.ndarray, "_"]]  # indices of pairs that are measured separately
    source: None = None  # since there are no images

    def digest(self) -> str:
        """Returns a text that changes if any rating changes."""
        subsets = {name: places.tolist() for name, places in self.subsets.items()}
        return _digest([self.texts, subsets], self.ratings.pair, self.ratings.rating)


Judged = Choices | RatedCaptions | RatedWords


def _digest(told: Any, *arrays: np.ndarray) -> str:
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for array in arrays:
        digest.update(f"{array.shape}".encode() + np.float64(array).tobytes())
    return digest.hexdigest()[:16]
