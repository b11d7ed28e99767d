"""Images of judgments: files, boxes in images, and selected examples of a source."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from big_align.data import examples
from big_align.data.derived.derived_source import ChosenExamples
from big_align.data.images.decoding import open_picture, to_rgb
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.sources.listed_source import SHARD_SIZE, ListedSource


def list_images(title: str, folder: str, names: Sequence[str]) -> ListedSource:
    """Makes a source from files in a folder."""
    return ListedSource(title, [f"{folder}/{name}" for name in names], [()] * len(names))


class BoxSource(ListedSource):
    """Boxes in image files, by their edges; what is outside the image is black, as in Pillow."""

    def __init__(self, title: str, paths: Sequence[str], boxes: Sequence[tuple[int, ...]]):
        super().__init__(title, paths, [()] * len(paths))
        self._boxes = np.array(boxes, np.int32)

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads the pixels of a box; raises BrokenExample."""
        example = super().read(shard, index)
        box = self._box(shard, index)
        with open_picture(example.image) as picture:
            example.image = np.asarray(to_rgb(picture).crop(box))
        example.key = self.key(shard, index)
        return example

    def key(self, shard: int, index: int) -> str:
        """Returns the path of the image, and the box."""
        return f"{super().key(shard, index)}#{','.join(map(str, self._box(shard, index)))}"

    def _box(self, shard: int, index: int) -> tuple[int, ...]:
        return tuple(self._boxes[shard * SHARD_SIZE + index].tolist())


class PickedSource(ChosenExamples):
    """The examples of a source that have the given numbers, in its order."""

    class_names = None

    def __init__(self, source: examples.Source, picked: Int[np.ndarray, "n"]):
        super().__init__(source)
        shards, indexes = ShardOffsets(source.shard_sizes).locate(picked)
        self._indexes = [indexes[shards == n] for n in range(len(source.shard_sizes))]
        self.shard_sizes = np.array([len(mine) for mine in self._indexes], np.int64)
        self.broken = np.zeros(len(self._indexes), np.int64)

    def _place(self, shard: int, index: int) -> int:
        return int(self._indexes[shard][index])
