"""How many images per second one core decodes and transforms."""

import io
import random
import time

import numpy as np
from PIL import Image

from big_align.data.images.image_ops import Transform

PHOTO_SIZE = (500, 375)  # width and height of typical photographs in data sets from the web
SECONDS = 1.0  # how long is measured


def measure_images_per_core(transform: str) -> float:
    """Decodes and transforms JPEGs in one thread; returns images per second of processor time."""
    operations, rng = Transform(transform), random.Random(0)
    photos = [_make_photo(seed) for seed in range(8)]
    operations(photos[0], rng)
    done, start = 0, time.thread_time()
    while (spent := time.thread_time() - start) < SECONDS:
        operations(photos[done % len(photos)], rng)
        done += 1
    return done / spent


def _make_photo(seed: int) -> bytes:
    """Makes a JPEG with about the size and bytes of a photograph: smooth areas and some noise."""
    rng, (width, height) = np.random.default_rng(seed), PHOTO_SIZE
    coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize(PHOTO_SIZE, Image.Resampling.BICUBIC))
    noisy = picture + rng.normal(0, 6, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
