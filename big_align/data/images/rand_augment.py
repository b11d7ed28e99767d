"""RandAugment (Cubuk et al. 2020) as recipes of Vision Transformers use it.

The definition is timm's `rand-m9-mstd0.5-inc1`, which Swin's recipe names (Liu et al. 2021, from
DeiT): `rand_augment(2, 9)`. It differs from the paper in four ways. A chosen operation is left out
with probability 1/2, so `identity` is not in the list; `invert` and `solarize_add` are, from the
same authors' code; the magnitude is drawn around its mean; and every range grows from the mildest
to the strongest, which is not true of all ranges in the paper's released tables.

At magnitude m of 10, with a fraction s = m / 10 and a drawn sign:

    rotate                    by +-30 s degrees about the middle
    shear_x, shear_y          by +-0.3 s pixels per pixel
    translate_x, translate_y  by +-0.45 s of the width or height
    color, contrast, brightness, sharpness
                              factor 1 +- 0.9 s
    posterize                 keeps 4 - floor(4 s) bits: 4 at magnitude 0, none (black) at 10
    solarize                  inverts values of at least 256 - floor(256 s)
    solarize_add              adds floor(110 s) to values below 128
    autocontrast, equalize, invert
                              have no magnitude

The area that moves in from outside is filled with ImageNet's mean color. Rotating and shearing
interpolate linearly (timm chooses at random between this and bicubic, which takes twice as long),
and translations are by whole pixels.
"""

import math
from collections.abc import Callable

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
FILL = tuple(round(255 * mean) for mean in IMAGENET_MEAN)


def rand_augment(
    picture: Image.Image,
    rng: Rng,
    num_ops: int,
    magnitude: float,
    magnitude_std: float = 0.5,
    colors: bool = True,
) -> Image.Image:
    """Applies operations drawn uniformly, with replacement, each with probability 1/2.

    Args:
      picture: an RGB picture; its size is kept.
      rng: the random numbers.
      num_ops: how many operations are drawn.
      magnitude: the mean of how strong they are, from 0 to 10.
      magnitude_std: the standard deviation; draws are clipped to 0 to 10.
      colors: False draws only from `COLOR_KEEPING`.
    """
    operations = OPERATIONS if colors else COLOR_KEEPING
    for _ in range(num_ops):
        operation = operations[int(rng.random() * len(operations))]
        if rng.random() >= PROBABILITY:
            continue
        drawn = min(max(magnitude + magnitude_std * _draw_normal(rng), 0.0), MAGNITUDE_MAX)
        sign = 1 if rng.random() < 0.5 else -1
        picture = operation(picture, drawn / MAGNITUDE_MAX, sign)
    return picture


def _draw_normal(rng: Rng) -> float:
    """Draws a standard normal number (Box & Muller 1958)."""
    radius = math.sqrt(-2 * math.log(1 - rng.random()))
    return radius * math.cos(2 * math.pi * rng.random())


def _autocontrast(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    """Stretches each channel to 0 to 255."""
    tables = []
    for low, high in picture.getextrema():
        tables.append((VALUES - low) * 255 / (high - low) if high > low else VALUES)
    return look_up(picture, np.stack(tables))


def _equalize(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    """Makes the histogram of each channel as flat as it can be, as Pillow does."""
    tables = []
    for counts in np.array(picture.histogram()).reshape(3, 256):
        filled = counts[counts > 0]
        step = (counts.sum() - filled[-1]) // 255
        below = np.cumsum(counts) - counts
        tables.append((step // 2 + below) // step if step else VALUES)
    return look_up(picture, np.stack(tables))


def _invert(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return look_up(picture, 255 - VALUES)


def _posterize(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    dropped = 8 - (4 - int(4 * fraction))
    return look_up(picture, VALUES >> dropped << dropped)


def _solarize(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return look_up(picture, np.where(VALUES < 256 - int(256 * fraction), VALUES, 255 - VALUES))


def _solarize_add(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return look_up(picture, np.where(VALUES < 128, VALUES + int(110 * fraction), VALUES))


def _color(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return adjust_saturation(picture, 1 + sign * 0.9 * fraction)


def _contrast(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return adjust_contrast(picture, 1 + sign * 0.9 * fraction)


def _brightness(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return adjust_brightness(picture, 1 + sign * 0.9 * fraction)


def _sharpness(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return ImageEnhance.Sharpness(picture).enhance(1 + sign * 0.9 * fraction)


def _rotate(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return picture.rotate(sign * 30 * fraction, Image.Resampling.BILINEAR, fillcolor=FILL)


def _shear_x(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return _shear(picture, sign * 0.3 * fraction, 0.0)


def _shear_y(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return _shear(picture, 0.0, sign * 0.3 * fraction)


def _shear(picture: Image.Image, of_x: float, of_y: float) -> Image.Image:
    matrix = (1.0, of_x, 0.0, of_y, 1.0, 0.0)
    linear = Image.Resampling.BILINEAR
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, linear, fillcolor=FILL)


def _translate_x(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return _move(picture, round(sign * 0.45 * fraction * picture.width), 0)


def _translate_y(picture: Image.Image, fraction: float, sign: int) -> Image.Image:
    return _move(picture, 0, round(sign * 0.45 * fraction * picture.height))


def _move(picture: Image.Image, right: int, down: int) -> Image.Image:
    moved = Image.new("RGB", picture.size, FILL)
    moved.paste(picture, (right, down))
    return moved


OPERATIONS: tuple[Callable[[Image.Image, float, int], Image.Image], ...] = (
    _autocontrast,
    _equalize,
    _invert,
    _rotate,
    _posterize,
    _solarize,
    _solarize_add,
    _color,
    _contrast,
    _brightness,
    _sharpness,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)
COLOR_KEEPING = tuple(
    operation
    for operation in OPERATIONS
    if operation not in (_invert, _posterize, _solarize, _solarize_add, _color, _contrast)
)
"""The operations left for captions that name colors (Li et al. 2021, ALBEF; IDEA follows it)."""
