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

    Attributes:
      source: the images.
      texts: all texts to choose from.
      image: the images of each case.
      text: the texts of each case. If a case has one image, the first text is right; if it has two,
        the first text belongs to the first image, and the second to the second.
      category: the category of each case; "" if it has none.
      averaged: the categories whose mean is published.
      groups: groups of categories whose means are published too, by name.
    """

    source: Source
    texts: tuple[str, ...]
    image: Int[np.ndarray, "n i"]
    text: Int[np.ndarray, "n t"]
    category: tuple[str, ...]
    averaged: tuple[str, ...] = ()
    groups: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of cases."""
        return len(self.image)

    def digest(self) -> str:
        """Returns a text that changes if any case changes."""
        told = [self.texts, self.category, self.averaged, dict(self.groups)]
        return _digest(told, self.image, self.text)


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Pairs of items, and how similar people found them.

    Attributes:
      pair: the numbers of both items.
      rating: the rating of each pair.
      positive: least rating of a pair that belongs together.
    """

    pair: Int[np.ndarray, "n 2"]
    rating: Float[np.ndarray, "n"]
    positive: float = float("inf")


@dataclasses.dataclass(frozen=True)
class RatedCaptions:
    """Images and captions with ratings of pairs of them (Crisscrossed Captions).

    Attributes:
      source: the images.
      texts: all captions.
      owner: the image of each caption.
      sts: ratings of two captions.
      sis: ratings of two images.
      sits: ratings of a caption and an image.
    """

    source: Source
    texts: tuple[str, ...]
    owner: Int[np.ndarray, "m"]
    sts: Ratings
    sis: Ratings
    sits: Ratings

    @property
    def count(self) -> int:
        """Number of rated pairs."""
        return sum(len(ratings.pair) for ratings in (self.sts, self.sis, self.sits))

    def digest(self) -> str:
        """Returns a text that changes if any rating changes."""
        rated = [self.sts, self.sis, self.sits]
        arrays = [array for ratings in rated for array in (ratings.pair, ratings.rating)]
        return _digest([self.texts, [x.positive for x in rated]], self.owner, *arrays)


@dataclasses.dataclass(frozen=True)
class RatedWords:
    """Pairs of words with their similarity (SimLex-999).

    Attributes:
      texts: the words.
      ratings: ratings of pairs of them.
      subsets: indices of pairs that are measured separately, by name.
      source: None, since there are no images.
    """

    texts: tuple[str, ...]
    ratings: Ratings
    subsets: Mapping[str, Int[np.ndarray, "_"]]
    source: None = None

    @property
    def count(self) -> int:
        """Number of rated pairs."""
        return len(self.ratings.pair)

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
