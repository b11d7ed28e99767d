"""The output of a config's image operations, found by running them on a blank image."""

import random
from typing import NoReturn

import numpy as np

from big_align.data.examples import BrokenExample
from big_align.data.images.image_ops import Transform
from big_align.errors import ConfigError

_BLANK = np.zeros((2048, 2048, 3), np.uint8)


def shape_of_image(transform: str, where: str) -> tuple[int, ...]:
    """Runs the operations on a large blank image, which also checks that they fit together.

    Args:
      transform: image operations.
      where: their place in the config, for error messages.

    Raises:
      ConfigError: an operation is unknown, or does not fit.
    """
    try:
        return Transform(transform)(_BLANK, random.Random(0)).shape
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_repeatable(transform: str, where: str) -> None:
    """Checks that image operations use no random numbers.

    Args:
      transform: image operations that fit together.
      where: their place in the config, for error messages.

    Raises:
      ConfigError: they do, so an image would differ from visit to visit.
    """
    try:
        Transform(transform)(_BLANK, _NoRandom())
    except BrokenExample as error:
        raise ConfigError(
            f"{where} = {transform!r} changes an image at random, but its features are computed "
            "once: write operations such as 'resize(192)', or leave config.cached_features.towers "
            "without 'image'"
        ) from error


class _NoRandom:
    """A random generator that must not be used."""

    def random(self) -> NoReturn:
        """Raises an error that marks any image as a broken example."""
        raise BrokenExample("a random number is drawn")

    randrange = shuffle = sample = random
