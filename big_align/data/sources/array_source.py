"""Examples held in memory."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from big_align.data import examples


class ArraySource:
    """Images and captions in arrays: one shard, nothing to read, no TensorFlow.

    Args:
      image: uint8 [n h w 3].
      captions: the texts of each image.
      label: integers [n] or [n k], the class or classes of each image; -1 fills up a row, or stands
        for none. None: no image has one.
      title: stands for the shard in messages.
      class_names: the name of each label, if known.

    Raises:
      ValueError: the lengths differ.
    """

    def __init__(
        self,
        image: UInt8[np.ndarray, "n h w 3"],
        captions: list[list[str]],
        label: Any = None,
        title: str = "array",
        class_names: tuple[str, ...] | None = None,
    ):
        label = np.full(len(image), examples.NO_LABEL) if label is None else np.asarray(label)
        if not len(image) == len(captions) == len(label):
            raise ValueError(
                f"{title}: {len(image)} images, {len(captions)} lists of captions and "
                f"{len(label)} labels; there must be as many of each"
            )
        self._image = image
        self._captions = captions
        rows = map(dict.fromkeys, (label[:, None] if label.ndim == 1 else label).tolist())
        self._labels = [tuple(c for c in row if c != examples.NO_LABEL) for row in rows]
        self._title = title
        self.class_names = class_names
        self.shard_sizes = np.array([len(image)], np.int64)
        self.broken = np.zeros(1, np.int64)

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example."""
        captions, labels = self.read_text(shard, index)
        return examples.Example(str(index), self._image[index], captions, labels)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels."""
        return self._captions[index], self._labels[index]

    def name(self, shard: int, index: int) -> str:
        """Names an example, as in `array: 42`."""
        return f"{self._title}: {index}"

    def key(self, shard: int, index: int) -> str:
        """Returns the number of the example."""
        return str(index)

    def shard_name(self, shard: int) -> str:
        """Names the only shard."""
        return self._title


def read_npz(path: str) -> ArraySource:
    """Reads a source from a file of arrays.

    Args:
      path: an .npz with `image` uint8 [n h w 3], and `caption` text [n] or [n k], `label` [n] or
        [n k], or both. Empty texts and labels of -1 fill up a row of [n k] and are left out.
        `class_names` text [c], if any, are the names of the labels.

    Raises:
      ValueError: an array is missing, or the lengths differ.
    """
    with np.load(path, allow_pickle=False) as file:
        wanted = ["image"] + ["caption"] * ("label" not in file)
        missing = [name for name in wanted if name not in file]
        if missing:
            raise ValueError(f"{path} has no array {missing[0]!r}; it has {', '.join(file)}")
        image = file["image"]
        label = file["label"] if "label" in file else None
        names = tuple(file["class_names"].tolist()) if "class_names" in file else None
        captions: list[list[str]] = [[] for _ in image]
        if "caption" in file:
            rows = file["caption"].reshape(len(file["caption"]), -1).tolist()
            captions = [[text for text in row if text.strip()] for row in rows]
        return ArraySource(image, captions, label, title=path, class_names=names)
