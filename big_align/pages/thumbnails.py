"""Small JPEG files of images, so that results are shown without the originals."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from big_align.data import boundary
from big_align.data.examples import BrokenExample
from big_align.data.images import decoding

QUALITY = 82


def make_thumbnail(image: Any, side: int, max_pixels: int = decoding.MAX_PIXELS) -> bytes:
    """Makes a JPEG whose sides have at most `side` pixels; only pixels are kept.

    Anything else in a file, such as the place where a photograph was taken, is left out. The image
    is an encoded file, or pixels uint8 [h w 3]; a file with more pixels than `max_pixels` is
    refused before it is decoded.

    Raises:
      BrokenExample: the image cannot be decoded.
    """
    with boundary.ONE_EXAMPLE:
        if isinstance(image, bytes):
            picture = decoding.open_picture(image, max_pixels)
        else:
            picture = Image.fromarray(np.asarray(image))
        if picture.mode not in ("RGB", "L") or "transparency" in picture.info:
            picture = decoding.to_rgb(picture)
        picture.thumbnail((side, side))  # a large JPEG is decoded at a reduced size
        pixels = np.asarray(decoding.to_rgb(picture))
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
        return file.getvalue()


def read_thumbnail(
    read: Callable[[], Any], side: int, max_pixels: int = decoding.MAX_PIXELS
) -> bytes:
    """Returns the JPEG of an image that is read again for a page; empty if it is gone."""
    try:
        return make_thumbnail(read(), side, max_pixels)
    except (BrokenExample, OSError, ValueError):
        return b""
