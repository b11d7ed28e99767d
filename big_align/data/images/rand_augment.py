"""RandAugment (Cubuk et al. 2020) as the recipes that papers name use it.

Operations are drawn uniformly, with replacement, and each is left out with probability 1/2. At
magnitude m of 10, with a fraction s = m / 10 and a drawn sign, their ranges are:

                              timm                                  albef
    rotate                    by +-30 s degrees about the middle    the same
    shear_x, shear_y          by +-0.3 s pixels per pixel           the same
    translate_x, translate_y  by +-0.45 s of the width or height    by +-10 s pixels
    brightness, sharpness     factor 1 +- 0.9 s                     factor 0.1 + 1.8 s
    autocontrast, equalize    have no magnitude                     the same
    identity                  is not drawn                          changes nothing
    color, contrast           factor 1 +- 0.9 s                     are not drawn
    posterize                 keeps 4 - floor(4 s) bits: 4 at       is not drawn
                              magnitude 0, none (black) at 10
    solarize                  inverts values of at least            is not drawn
                              256 - floor(256 s)
    solarize_add              adds floor(110 s) to values           is not drawn
                              below 128
    invert                    has no magnitude                      is not drawn
    moves in from outside     ImageNet's mean color                 gray, 128
    magnitude                 normal around m, deviation 0.5        m

`timm` is timm's `rand-m9-mstd0.5-inc1`, which Swin's recipe names (Liu et al. 2021, from DeiT):
`rand_augment(2, 9)`. `albef` is what the code of ALBEF has (Li et al. 2021), without changes of
color for captions that name them; IDEA follows it: `rand_augment(2, 7, recipe="albef")`. There a
magnitude below 5 darkens and blurs, and one above brightens and sharpens.

Rotating and shearing interpolate linearly (timm chooses at random between this and bicubic, which
takes twice as long), and translations are by whole pixels.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from big_align.data.images.pixel_ops import (
    IMAGENET_MEAN,
    VALUES,
    Rng,
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    look_up,
)

MAGNITUDE_MAX = 10
PROBABILITY = 0.5


def rand_augment(
    picture: Image.Image, rng: Rng, num_ops: int, magnitude: float, recipe: str = "timm"
) -> Image.Image:
    """Applies operations drawn uniformly, with replacement, each with probability 1/2.

    Args:
      picture: an RGB picture; its size is kept.
      rng: the random numbers.
      num_ops: how many operations are drawn.
      magnitude: the mean of how strong they are, from 0 to 10; draws are clipped to that.
      recipe: which operations are drawn, and their ranges: a name in `RECIPES`.
    """
    chosen = RECIPES[recipe]
    for _ in range(num_ops):
        name = chosen.operations[int(rng.random() * len(chosen.operations))]
        if rng.random() >= PROBABILITY:
            continue
        drawn = min(max(magnitude + chosen.magnitude_std * _draw_normal(rng), 0.0), MAGNITUDE_MAX)
        sign = 1 if rng.random() < 0.5 else -1
        picture = OPERATIONS[name](picture, Strength(drawn / MAGNITUDE_MAX, sign, chosen))
    return picture


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What may be drawn, and how strong it is."""

    operations: tuple[str, ...]  # the names of those that are drawn
    magnitude_std: float  # the standard deviation of the magnitude
    fill: tuple[int, ...]  # the color of what moves in from outside
    shift: Callable[[int, float], float]  # pixels, from the side in pixels and the fraction
    factor: Callable[[float, int], float]  # of brightness and such, from fraction and sign


class Strength(NamedTuple):
    """How strong an operation is: a fraction of its range, a sign, and whose range it is."""

    fraction: float
    sign: int
    recipe: Recipe

    @property
    def factor(self) -> float:
        return self.recipe.factor(self.fraction, self.sign)


Operation = Callable[[Image.Image, Strength], Image.Image]


def _draw_normal(rng: Rng) -> float:
    """Draws a standard normal number (Box & Muller 1958)."""
    radius = math.sqrt(-2 * math.log(1 - rng.random()))
    return radius * math.cos(2 * math.pi * rng.random())


def _autocontrast(picture: Image.Image, by: Strength) -> Image.Image:
    """Stretches each channel to 0 to 255."""
    tables = []
    for low, high in picture.getextrema():
        tables.append((VALUES - low) * 255 / (high - low) if high > low else VALUES)
    return look_up(picture, np.stack(tables))


def _equalize(picture: Image.Image, by: Strength) -> Image.Image:
    """Makes the histogram of each channel as flat as it can be, as Pillow does."""
    tables = []
    for counts in np.array(picture.histogram()).reshape(3, 256):
        filled = counts[counts > 0]
        step = (counts.sum() - filled[-1]) // 255
        below = np.cumsum(counts) - counts
        tables.append((step // 2 + below) // step if step else VALUES)
    return look_up(picture, np.stack(tables))


def _posterize(picture: Image.Image, by: Strength) -> Image.Image:
    dropped = 8 - (4 - int(4 * by.fraction))
    return look_up(picture, VALUES >> dropped << dropped)


def _shear(picture: Image.Image, by: Strength, right: float, down: float) -> Image.Image:
    given = Image.Transform.AFFINE, (1.0, right, 0.0, down, 1.0, 0.0), Image.Resampling.BILINEAR
    return picture.transform(picture.size, *given, fillcolor=by.recipe.fill)


def _move(picture: Image.Image, by: Strength, side: int, axis: tuple[int, int]) -> Image.Image:
    shift = round(by.sign * by.recipe.shift(side, by.fraction))
    moved = Image.new("RGB", picture.size, by.recipe.fill)
    moved.paste(picture, (shift * axis[0], shift * axis[1]))
    return moved


OPERATIONS: dict[str, Operation] = {
    "identity": lambda picture, by: picture,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda picture, by: look_up(picture, 255 - VALUES),
    "posterize": _posterize,
    "solarize": lambda picture, by: look_up(
        picture, np.where(VALUES < 256 - int(256 * by.fraction), VALUES, 255 - VALUES)
    ),
    "solarize_add": lambda picture, by: look_up(
        picture, np.where(VALUES < 128, VALUES + int(110 * by.fraction), VALUES)
    ),
    "color": lambda picture, by: adjust_saturation(picture, by.factor),
    "contrast": lambda picture, by: adjust_contrast(picture, by.factor),
    "brightness": lambda picture, by: adjust_brightness(picture, by.factor),
    "sharpness": lambda picture, by: ImageEnhance.Sharpness(picture).enhance(by.factor),
    "rotate": lambda picture, by: picture.rotate(
        by.sign * 30 * by.fraction, Image.Resampling.BILINEAR, fillcolor=by.recipe.fill
    ),
    "shear_x": lambda picture, by: _shear(picture, by, by.sign * 0.3 * by.fraction, 0.0),
    "shear_y": lambda picture, by: _shear(picture, by, 0.0, by.sign * 0.3 * by.fraction),
    "translate_x": lambda picture, by: _move(picture, by, picture.width, (1, 0)),
    "translate_y": lambda picture, by: _move(picture, by, picture.height, (0, 1)),
}
"""The operations by name: the module's docstring has their ranges."""

BOTH = (
    *("autocontrast", "equalize", "rotate", "brightness", "sharpness"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)
RECIPES = {
    "timm": Recipe(
        operations=(*BOTH, "invert", "posterize", "solarize", "solarize_add", "color", "contrast"),
        magnitude_std=0.5,
        fill=tuple(round(255 * mean) for mean in IMAGENET_MEAN),
        shift=lambda side, fraction: 0.45 * fraction * side,
        factor=lambda fraction, sign: 1 + sign * 0.9 * fraction,
    ),
    "albef": Recipe(
        operations=(*BOTH, "identity"),
        magnitude_std=0.0,
        fill=(128, 128, 128),
        shift=lambda side, fraction: 10 * fraction,
        factor=lambda fraction, sign: 0.1 + 1.8 * fraction,
    ),
}
"""The recipes by name."""
