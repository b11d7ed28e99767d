"""Operations that make another RGB picture: color, blur and erasing, which `image_ops` composes."""

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Num
from PIL import Image, ImageFilter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
VALUES = np.arange(256)
ERASING_TRIES = 10
HUE_STEPS = 1024  # per sixth of the circle; fine enough that a chroma of 255 is exact when rounded

# How much of the chroma a channel lacks, over three turns of the hue; a turn is six sectors. Red
# lacks nothing in the sector on each side of its own hue, and all of it opposite.
_sectors = np.arange(3 * 6 * HUE_STEPS) / HUE_STEPS % 6
HUE_WAVE = np.clip(np.minimum(_sectors, 4 - _sectors), 0, 1).astype(np.float32)
CHANNEL_SECTORS = (5, 3, 1)  # where red, green and blue are on the wave


@runtime_checkable
class Rng(Protocol):
    """A generator of random numbers, such as random.Random or numpy's."""

    def random(self) -> float:
        """Returns a number in [0, 1)."""


def color_jitter(
    picture: Image.Image,
    rng: Rng,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    probability: float = 1.0,
) -> Image.Image:
    """Changes brightness, contrast, saturation and hue, in a drawn order.

    The first three are factors drawn uniformly from [max(0, 1 - x), 1 + x]; the hue is turned by a
    fraction of the circle drawn uniformly from [-hue, hue]. This is torchvision's definition.
    """
    if rng.random() >= probability:
        return picture
    adjustments: list[tuple[Callable[[Image.Image, float], Image.Image], float]] = [
        (adjust_brightness, _draw_factor(brightness, rng)),
        (adjust_contrast, _draw_factor(contrast, rng)),
        (adjust_saturation, _draw_factor(saturation, rng)),
        (shift_hue, hue * (2 * rng.random() - 1)),
    ]
    for adjust, amount in sorted(adjustments, key=lambda _: rng.random()):
        picture = adjust(picture, amount)
    return picture


def grayscale(picture: Image.Image, rng: Rng, probability: float) -> Image.Image:
    """Replaces colors by their luma (ITU-R 601), with a probability."""
    if rng.random() >= probability:
        return picture
    return picture.convert("L").convert("RGB")


def gaussian_blur(
    picture: Image.Image,
    rng: Rng,
    probability: float,
    sigma_min: float = 0.1,
    sigma_max: float = 2.0,
) -> Image.Image:
    """Blurs with a standard deviation drawn uniformly, in pixels, with a probability.

    The defaults are SimCLR's (Chen et al. 2020, appendix A).
    """
    if rng.random() >= probability:
        return picture
    return picture.filter(ImageFilter.GaussianBlur(_uniform(sigma_min, sigma_max, rng)))


def random_erasing(
    picture: Image.Image,
    rng: Rng,
    probability: float,
    scale_min: float = 0.02,
    scale_max: float = 1 / 3,
    ratio_min: float = 0.3,
    ratio_max: float = 1 / 0.3,
) -> Image.Image:
    """Fills a rectangle of random area (a fraction of the image) and aspect with noise.

    Zhong et al. 2017 with the noise of Swin's recipe (timm's mode `pixel`): every value is normal
    with the mean and deviation of its channel over ImageNet. If ten rectangles in a row do not fit
    inside, nothing is erased.
    """
    if rng.random() >= probability:
        return picture
    for _ in range(ERASING_TRIES):
        area = _uniform(scale_min, scale_max, rng) * picture.width * picture.height
        ratio = ratio_min * (ratio_max / ratio_min) ** rng.random()
        height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < height < picture.height and 0 < width < picture.width:
            left = int(rng.random() * (picture.width - width + 1))
            top = int(rng.random() * (picture.height - height + 1))
            picture = picture.copy()
            picture.paste(_make_noise(height, width, rng), (left, top))
            break
    return picture


def adjust_brightness(picture: Image.Image, factor: float) -> Image.Image:
    """Multiplies the distance of every value from 0."""
    return _blend_with_gray(picture, 0, factor)


def adjust_contrast(picture: Image.Image, factor: float) -> Image.Image:
    """Multiplies the distance of every value from the mean luma, rounded to a whole number."""
    counts = np.array(picture.convert("L").histogram())
    return _blend_with_gray(picture, int(counts @ VALUES / counts.sum() + 0.5), factor)


def adjust_saturation(picture: Image.Image, factor: float) -> Image.Image:
    """Multiplies the distance of every value from the luma of its pixel."""
    return Image.blend(picture.convert("L").convert("RGB"), picture, factor)


def shift_hue(picture: Image.Image, turn: float) -> Image.Image:
    """Turns the hue by a fraction of the circle; keeps the value and saturation of HSV.

    Pillow's own conversion to HSV and back takes two to three times as long and rounds the hue to 8
    bits.
    """
    if turn == 0:
        return picture
    red, green, blue = (np.asarray(band, np.float32) for band in picture.split())
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    sector = np.where(
        value == red,
        green - blue,
        np.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma),
    )
    steps = sector * (HUE_STEPS / np.maximum(chroma, 1)) + (6 * HUE_STEPS + 0.5)  # red can be < 0
    steps = steps.astype(np.int32)  # from 5 to 11 sectors
    result = np.empty((*value.shape, 3), np.uint8)
    for channel, start in enumerate(CHANNEL_SECTORS):
        first = int((start + 6 * turn) % 6 * HUE_STEPS)
        result[..., channel] = value - chroma * HUE_WAVE[first:].take(steps) + 0.5
    return Image.fromarray(result)


def look_up(picture: Image.Image, table: Num[np.ndarray, "*channels 256"]) -> Image.Image:
    """Maps every value through a table, or a table for each channel; clips to 0 to 255."""
    table = np.broadcast_to(np.clip(table, 0, 255).astype(np.uint8), (3, 256))
    return picture.point(table.reshape(-1).tolist())


def _blend_with_gray(picture: Image.Image, gray: int, factor: float) -> Image.Image:
    return Image.blend(Image.new("RGB", picture.size, (gray, gray, gray)), picture, factor)


def _uniform(low: float, high: float, rng: Rng) -> float:
    return low + (high - low) * rng.random()


def _draw_factor(spread: float, rng: Rng) -> float:
    return _uniform(max(0.0, 1 - spread), 1 + spread, rng)


def _make_noise(height: int, width: int, rng: Rng) -> Image.Image:
    generator = np.random.Generator(np.random.SFC64(int(rng.random() * 2**53)))
    noise = generator.standard_normal((height, width, 3), np.float32)
    noise = 255 * (noise * np.float32(IMAGENET_STD) + np.float32(IMAGENET_MEAN))
    return Image.fromarray(noise.clip(0, 255).astype(np.uint8))
