"""The output of a config's image operations, found by running them on a blank image."""

import functools
import random
from typing import Any

import numpy as np

from big_align.core.errors import ConfigError, naming_field
from big_align.data.examples import BrokenExample
from big_align.data.images.image_ops import Transform

_BLANK = np.zeros((2048, 2048, 3), np.uint8)


def shape_of_image(transform: str, where: str) -> tuple[int, ...]:
    """Runs the operations on a large blank image, which also checks that they fit together."""
    with naming_field(where):
        return _find_shape(transform)


@functools.lru_cache
def _find_shape(transform: str) -> tuple[int, ...]:
    """Evaluators mostly share their operations, and a blank image is not small."""
    return Transform(transform)(_BLANK, random.Random(0)).shape


def check_repeatable(transform: str, where: str) -> None:
    """Checks that no random number changes what image operations make, from visit to visit."""
    try:
        Transform(transform)(_BLANK, _NoRandom())
    except BrokenExample as error:
        raise ConfigError(
            f"{where} = {transform!r} changes an image at random, but it is embedded once: write "
            "operations such as 'resize(192)'"
        ) from error


class _Drawn:
    """A number from 0 to 1 of which nothing else is known."""

    def __ge__(self, probability: float) -> bool:
        if 0 < probability < 1:
            raise BrokenExample("a random number decides")
        return probability <= 0


class _NoRandom:
    """A random generator whose numbers must not matter."""

    def random(self) -> Any:
        """Returns a number that arithmetic refuses, which makes any image a broken example."""
        return _Drawn()
