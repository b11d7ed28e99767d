"""Batches of images that a caller gave, decoded by threads ahead of the consumer."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample
from big_align.data.images import given_images, image_ops
from big_align.data.loading import parallel
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.workers.batch_memory import HostBatch

AHEAD = 2  # batches that are filled while one is embedded
REMOTE_THREADS = 32  # they wait for answers and hardly compute


class ImageBatch(NamedTuple):
    """Some of the images, from the `first` on."""

    first: int
    image: UInt8[np.ndarray, "b h w 3"]  # zeros in the rows of broken images
    mask: Bool[np.ndarray, "b"]  # False in these rows
    faults: dict[int, str]  # why an image is broken, by its number


def load_images(
    images: Sequence[Any], transform: image_ops.Transform, shape: tuple[int, ...], batch_size: int
) -> Iterator[ImageBatch]:
    """Yields images, as `given_images.check_images` returns them, in batches and in their order.

    The operations are without randomness, and make (height, width, 3) of an image.
    """
    remote = any(isinstance(image, str) and "://" in image for image in images)
    workers = parallel.Workers(REMOTE_THREADS if remote else None)
    faults: dict[int, str] = {}

    def start(first: int) -> parallel.Filling:
        def job(batch: HostBatch, begin: int, end: int) -> None:
            for row in range(begin, end):
                number = first + row
                try:
                    data = given_images.read_image(images[number])
                    pixels = transform(data, PositionRandom(0, number))
                except BrokenExample as error:
                    faults[number] = str(error)
                    continue
                if pixels.shape != shape:
                    name = given_images.name_image(images[number], number)
                    raise UserError(f"{name}: {image_ops.explain_sizes(shape, pixels.shape)}")
                batch["image"][row], batch["mask"][row] = pixels, True

        count = min(batch_size, len(images) - first)
        batch = {"image": np.zeros((count, *shape), np.uint8), "mask": np.zeros(count, bool)}
        return workers.fill(batch, count, job)

    starts = range(0, len(images), batch_size)
    with contextlib.closing(workers):
        for first, batch in zip(
            starts, parallel.take_ahead(map(start, starts), AHEAD + 1), strict=True
        ):
            # Later images may have been found broken already: their batches will report them.
            found = {n: faults[n] for n in sorted(faults) if first <= n < first + batch_size}
            yield ImageBatch(first, batch["image"], batch["mask"], found)
