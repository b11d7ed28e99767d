"""The images of a batch: decoded, transformed, in as many views as are wanted."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from big_align.data.images import image_ops, image_workers
from big_align.data.loading import parallel
from big_align.data.loading.parallel import Row


class ImagePipeline:
    """Decodes and transforms images, in the calling thread or in processes.

    Args:
      transform: image operations, as in `resize(346)|random_crop(289)|flip_horizontal`; the
        result has one size.
      views_per_image: with v > 1 `image` is uint8 [b v h w 3], each view with its own draws.
      num_processes: processes that decode and transform images; 0 does it in the calling thread.
        They are worth their start on many cores, and where images are small (`image_workers`).
      max_pixels: an encoded image with more is broken; it is not decoded.

    Raises:
      ValueError: a value is out of range or the transform is wrong.
    """

    def __init__(
        self,
        transform: str,
        views_per_image: int = 1,
        num_processes: int = 0,
        max_pixels: int = image_ops.MAX_PIXELS,
    ):
        parallel.check_at_least(1, views_per_image=views_per_image, max_pixels=max_pixels)
        parallel.check_at_least(0, num_processes=num_processes)
        self.num_processes = num_processes
        self._views = views_per_image
        self._operations = transform
        self._max_pixels = max_pixels
        self._transform = image_ops.Transform(transform, max_pixels)
        self._images: image_workers.Images | None = None

    def start(self, image: Any, rng: image_ops.Rng) -> Row:
        """Makes a first image, whose size all others must have, and starts the processes.

        Args:
          image: an encoded file, or pixels uint8 [h w 3].
          rng: the random numbers of its transform.

        Returns:
          The shape and the type of `image` in a batch.

        Raises:
          BrokenExample: the image cannot be decoded.
        """
        shape = self._transform(image, rng).shape
        self._images = image_workers.make_images(
            self._operations, shape, self.num_processes, parallel.CHUNK_MAX, self._views,
            self._max_pixels,
        )  # fmt: skip
        views = (self._views,) if self._views > 1 else ()
        return {"image": ((*views, *shape), np.uint8)}

    def apply(
        self, work: image_workers.Work, rows: Sequence[memoryview]
    ) -> list[image_workers.Outcome]:
        """Writes all views of each image into a row, and tells which could not be decoded.

        Args:
          work: encoded images or pixels, each with the random numbers of its transform.
          rows: flat memory of as many images.

        Raises:
          UserError: the sizes of the results differ.
          RuntimeError: a process has ended.
        """
        return self._images.apply(work, rows)

    def close(self) -> None:
        """Ends the processes; nothing may be running in them."""
        if self._images is not None:
            self._images.close()
