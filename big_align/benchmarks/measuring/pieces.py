"""A source cut into short pieces, and a fingerprint of its images."""

import hashlib
from concurrent import futures
from typing import Any

import numpy as np

from big_align.data import boundary
from big_align.data.examples import BrokenExample, Example, Source
from big_align.data.shard_offsets import ShardOffsets

PIECE = 2048
"""Number of examples per piece, and so the most that are lost when embedding is stopped."""
SAMPLES = 256
"""Number of images that identify a source."""
TEXTS = 50_000
"""Number of examples whose captions and labels do."""
THREADS = 16


class Pieces:
    """The examples of a source in order, in shards of equal length.

    Data sets have one shard or thousands. In pieces, each of them can be resumed where it was
    stopped, and is split evenly over processes.

    Args:
      source: the examples.
      size: examples per piece; the last piece may be shorter. None for `PIECE`.
    """

    def __init__(self, source: Source, size: int | None = None):
        size = size or PIECE
        self._source, self._size = source, size
        self._offsets = ShardOffsets(source.shard_sizes)
        starts = np.arange(0, self._offsets.count, size)
        self.class_names = source.class_names
        self.shard_sizes = np.minimum(size, self._offsets.count - starts)
        self.broken = np.zeros(len(starts), np.int64)
        if len(starts):
            self.broken[-1] = source.broken.sum()

    def read(self, shard: int, index: int) -> Example:
        """Reads an example; raises BrokenExample."""
        return self._source.read(*self._place(shard, index))

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels; raises BrokenExample."""
        return self._source.read_text(*self._place(shard, index))

    def name(self, shard: int, index: int) -> str:
        """Returns the source's name of an example."""
        return self._source.name(*self._place(shard, index))

    def shard_name(self, shard: int) -> str:
        """Returns a name of a piece made from its examples."""
        first = shard * self._size
        return f"examples {first} to {first + int(self.shard_sizes[shard]) - 1}"

    def _place(self, shard: int, index: int) -> tuple[int, int]:
        return self._offsets.locate_one(shard * self._size + index)


def fingerprint_images(source: Source) -> str:
    """Returns a text that is the same for the same images in the same order, wherever they are.

    It covers the number of images and 256 of them, evenly spaced, including the first and the last.
    Labels and captions do not count.
    """
    offsets = ShardOffsets(source.shard_sizes)
    digest = hashlib.sha256(str(offsets.count).encode())
    last = offsets.count - 1
    for number in np.unique(np.linspace(0, last, min(SAMPLES, offsets.count)).astype(np.int64)):
        digest.update(digest_image(source, *offsets.locate_one(int(number))))
    return digest.hexdigest()[:20]


def digest_texts(source: Source) -> str:
    """Returns a digest of the captions and labels of examples, in order.

    Numbers depend on them, and they may be corrected while the images stay. They are read by
    threads, for the sake of buckets; of more than `TEXTS` examples, as many, evenly spaced.
    """
    offsets = ShardOffsets(source.shard_sizes)
    count = min(TEXTS, offsets.count)
    numbers = np.unique(np.linspace(0, offsets.count - 1, count).astype(np.int64)).tolist()

    def read(number: int) -> Any:
        try:
            return boundary.read_texts(source, *offsets.locate_one(number))
        except BrokenExample:
            return None

    digest = hashlib.sha256(str(offsets.count).encode())
    with futures.ThreadPoolExecutor(THREADS) as threads:
        for told in threads.map(read, numbers):
            digest.update(repr(told).encode(errors="backslashreplace"))
    return digest.hexdigest()[:16]


def digest_image(source: Source, shard: int, index: int) -> bytes:
    """Returns a digest of an image: of its encoded file, or of its pixels with their shape."""
    try:
        image = boundary.read_example(source, shard, index).image
    except BrokenExample:
        return b"broken"
    if not isinstance(image, bytes | bytearray | memoryview):
        pixels = np.ascontiguousarray(image)
        image = f"{pixels.dtype} {pixels.shape}".encode() + pixels.tobytes()
    return hashlib.sha256(image).digest()
