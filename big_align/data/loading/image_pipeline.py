"""The images of a batch: decoded, transformed, in as many views as are wanted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from big_align.core.errors import UserError, check_at_least
from big_align.data import examples
from big_align.data.images import image_ops
from big_align.data.workers.batch_memory import Row

Work = Sequence[tuple[Any, image_ops.Rng]]
"""Encoded images or pixels, each with the random numbers of its transform."""

Outcome = examples.BrokenExample | None
"""Why an image could not be decoded, or None."""


class ImagePipeline:
    """Decodes and transforms images.

    Args:
      transform: image operations, as in `resize(346)|random_crop(289)|flip_horizontal`; the
        result has one size.
      views_per_image: with v > 1 `image` is uint8 [b v h w 3], each view with its own draws.
      max_pixels: an encoded image with more is broken; it is not decoded.
    """

    def __init__(
        self, transform: str, views_per_image: int = 1, max_pixels: int = image_ops.MAX_PIXELS
    ):
        check_at_least(1, views_per_image=views_per_image, max_pixels=max_pixels)
        self._views = views_per_image
        self._transform = image_ops.Transform(transform, max_pixels)
        self._shape: tuple[int, ...] = ()
        self._size = 0

    def start(self, image: Any, rng: image_ops.Rng) -> Row:
        """Makes a first image, whose size all others must have; returns the row of `image`."""
        self._shape = self._transform(image, rng).shape
        self._size = int(np.prod(self._shape))
        views = (self._views,) if self._views > 1 else ()
        return {"image": ((*views, *self._shape), np.uint8)}

    def apply(self, work: Work, rows: Sequence[memoryview]) -> list[Outcome]:
        """Writes all views of each image into a row of memory; tells which cannot be decoded."""
        return [self._apply(image, rng, row) for (image, rng), row in zip(work, rows, strict=True)]

    def _apply(self, image: Any, rng: image_ops.Rng, row: memoryview) -> Outcome:
        for start in range(0, self._views * self._size, self._size):
            try:
                pixels = self._transform(image, rng)
            except examples.BrokenExample as error:
                return error
            if pixels.shape != self._shape:
                raise UserError(image_ops.explain_sizes(self._shape, pixels.shape))
            # NumPy's copy would release Python's lock and wait for it
            row[start : start + self._size] = pixels.reshape(-1)
        return None
