"""A source of images of 50 megapixels, whose files are large and not shared."""

import io

import numpy as np
from PIL import Image

from big_align.data.sources.array_source import ArraySource

FILE_BYTES = 40_000_000


class HugeSource(ArraySource):
    """Every example is read as a file of its own."""

    def __init__(self, size: int):
        super().__init__(np.zeros((size, 1, 1, 3), np.uint8), [["number 1"]] * size)
        file = io.BytesIO()
        Image.new("RGB", (10_000, 5000), "red").save(file, "PNG", compress_level=1)
        self._data = file.getvalue()

    def read(self, shard, index):
        example = super().read(shard, index)
        example.image = self._data + bytes(FILE_BYTES - len(self._data))  # PNG ends before
        return example
