"""A source cut into short pieces, and a fingerprint of its images."""

import hashlib

import numpy as np

from big_align.data import boundary
from big_align.data.derived.derived_source import DerivedSource
from big_align.data.examples import BrokenExample, Source
from big_align.data.shard_offsets import ShardOffsets

PIECE = 2048
"""Number of examples per piece, and so the most that are lost when embedding is stopped."""
SAMPLES = 256
"""Number of images that identify a source."""
TEXTS = 50_000
"""Number of examples whose captions and labels do."""


class Pieces(DerivedSource):
    """The examples of a source in order, in shards of equal length (`PIECE`); the last is shorter.

    Data sets have one shard or thousands. In pieces, each of them can be resumed where it was
    stopped, and is split evenly over processes.
    """

    def __init__(self, source: Source, size: int | None = None):
        super().__init__([source])
        self._size = size = size or PIECE
        self._offsets = ShardOffsets(source.shard_sizes)
        starts = np.arange(0, self._offsets.count, size)
        self.shard_sizes = np.minimum(size, self._offsets.count - starts)
        self.broken = np.zeros(len(starts), np.int64)
        if len(starts):
            self.broken[-1] = source.broken.sum()

    def shard_name(self, shard: int) -> str:
        """Returns a name of a piece made from its examples."""
        first = shard * self._size
        return f"examples {first} to {first + int(self.shard_sizes[shard]) - 1}"

    def _find(self, shard: int, index: int) -> tuple[Source, int, int]:
        return self._sources[0], *self._offsets.locate_one(shard * self._size + index)


def fingerprint_images(source: Source) -> str:
    """Returns a text that is the same for the same images in the same order, wherever they are.

    It covers the number of images and 256 of them, evenly spaced, including the first and the last.
    Labels and captions do not count.
    """
    offsets = ShardOffsets(source.shard_sizes)
    digest = hashlib.sha256(str(offsets.count).encode())
    for place in offsets.spread_to_end(SAMPLES):
        digest.update(digest_image(source, *place))
    return digest.hexdigest()[:20]


def digest_texts(source: Source) -> str:
    """Returns a digest of the captions and labels of examples, in order.

    Numbers depend on them, and they may be corrected while the images stay. Of more than `TEXTS`
    examples, as many are read, evenly spaced.
    """
    offsets = ShardOffsets(source.shard_sizes)
    digest = hashlib.sha256(str(offsets.count).encode())
    for _, told in boundary.read_many_texts(source, offsets.spread_to_end(TEXTS)):
        told = None if isinstance(told, BrokenExample) else told
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
