"""Pictures of examples, for people to look at."""

import random
from collections.abc import Callable

import numpy as np
from jaxtyping import UInt8

from big_align.data import boundary
from big_align.data.examples import Source
from big_align.data.images.image_ops import Transform
from big_align.data.shard_offsets import ShardOffsets

Pixels = Callable[[int], UInt8[np.ndarray, "h w 3"]]


def read_pixels(source: Source, size: int = 160) -> Pixels:
    """Returns a function that reads the center of an example, given by number, as a square.

    The function raises a UserError if the example cannot be read.
    """
    show = Transform(f"resize_small({size})|central_crop({size})")
    offsets = ShardOffsets(source.shard_sizes)

    def read(number: int) -> UInt8[np.ndarray, "h w 3"]:
        shard, index = offsets.locate_one(number)
        with boundary.name_example(source, shard, index):
            return show(source.read(shard, index).image, random.Random(0))

    return read
