"""How many images one core decodes and transforms in a second."""

import io
import random
import time

import numpy as np
from PIL import Image

from big_align.data.images.image_ops import Transform

PHOTO_SIZE = (500, 375)
"""Width and height of photographs as data sets from the web have them."""


def measure_images_per_core(transform: str, seconds: float = 1.0) -> float:
    """Decodes and transforms JPEGs in one thread for a while.

    Args:
      transform: of `config.data.transform`.
      seconds: how long.

    Returns:
      Images a second of processor time, of this machine.
    """
    operations, rng = Transform(transform), random.Random(0)
    photos = [_make_photo(seed) for seed in range(8)]
    operations(photos[0], rng)
    done, start = 0, time.thread_time()
    while (spent := time.thread_time() - start) < seconds:
        operations(photos[done % len(photos)], rng)
        done += 1
    return done / spent


def _make_photo(seed: int) -> bytes:
    """Makes a JPEG of the size and about the bytes of a photograph: smooth areas and some noise."""
    rng, (width, height) = np.random.default_rng(seed), PHOTO_SIZE
    coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize(PHOTO_SIZE, Image.Resampling.BICUBIC))
    noisy = picture + rng.normal(0, 6, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
