"""Examples held in memory."""

import zipfile
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from big_align.core.errors import UserError, put_in_a_line, tell_in_a_line
from big_align.data import array_files, examples, files

KINDS = {
    "image": ("u", (4,), "uint8 [n h w 3]"),
    "caption": ("U", (1, 2), "text [n] or [n k]"),
    "label": ("iuf", (1, 2), "integers [n] or [n k]"),
    "class_names": ("U", (1,), "text [c]"),
}
"""For each array, the kinds of its type (NumPy's letters), its dimensions, and both in words."""


def _clean_labels(label: Shaped[np.ndarray, "n ..."], title: str) -> list[tuple[int, ...]]:
    if label.dtype.kind not in "iuf":
        raise UserError(f"{title}: labels are {label.dtype}; they must be integers")
    cleaned = []
    rows = label[:, None] if label.ndim == 1 else label
    for number, row in enumerate(rows.tolist()):
        try:
            there = [each for each in row if each != examples.NO_LABEL]
            cleaned.append(examples.clean_labels(there))
        except examples.WrongLabel as error:
            raise UserError(f"{title}: {number}: {error}, or -1 for none") from error
    return cleaned


class ArraySource:
    """Images and captions in arrays: one shard, nothing to read, no TensorFlow.

    Args:
      image: uint8 [n h w 3].
      captions: the texts of each image.
      label: integers [n] or [n k], the class or classes of each image; -1 pads a row, or means that
        there is none. None: no image has one.
      title: names the shard in messages.
      class_names: the name of each label, if known.
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
        self._labels = _clean_labels(label, title)
        self._title = title
        self.class_names = class_names
        self.shard_sizes = np.array([len(image)], np.int64)
        self.broken = np.zeros(1, np.int64)

    def read(self, shard: int, index: int) -> examples.Example:
        captions, labels = self.read_text(shard, index)
        return examples.Example(str(index), self._image[index], captions, labels)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        return self._captions[index], self._labels[index]

    def name(self, shard: int, index: int) -> str:
        return f"{self._title}: {index}"

    def key(self, shard: int, index: int) -> str:
        return str(index)

    def shard_name(self, shard: int) -> str:
        return self._title


def read_npz(path: str) -> ArraySource:
    """Reads a source from a file of arrays.

    Args:
      path: an .npz with `image` uint8 [n h w 3], and `caption` text [n] or [n k], `label` [n] or
        [n k], or both. Empty texts and labels of -1 pad a row of [n k] and are left out.
        `class_names` text [c], if any, are the names of the labels.

    Raises:
      UserError: the file is damaged, or an array is missing or not as described; names the file.
    """
    try:
        with files.files_of(path).open(path) as file:
            there = zipfile.ZipFile(file).namelist()
            found = array_files.read_arrays(file, KINDS)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile raises all kinds of errors
        raise UserError(f"{path} is no whole .npz file: {tell_in_a_line(error)}") from error
    wanted = ["image"] + ["caption"] * ("label" not in found)
    if missing := [name for name in wanted if name not in found]:
        have = put_in_a_line(", ".join(name.removesuffix(".npy") for name in there))
        raise UserError(f"{path} has no array {missing[0]!r}; it has {have}")
    for name, array in found.items():
        kinds, dims, meaning = KINDS[name]
        if array.dtype.kind not in kinds or array.ndim not in dims:
            raise UserError(
                f"{path}: {name!r} is {array.dtype} {list(array.shape)}; it must be {meaning}"
            )
    image = found["image"]
    if image.dtype != np.uint8 or image.shape[3] != 3 or not all(image.shape[1:]):
        raise UserError(
            f"{path}: 'image' is {image.dtype} {list(image.shape)}; it must be {KINDS['image'][2]}"
        )
    captions: list[list[str]] = [[] for _ in image]
    if "caption" in found:
        rows = found["caption"].reshape(len(found["caption"]), -1).tolist()
        captions = [[text for text in row if text.strip()] for row in rows]
    for number, texts in enumerate(captions):
        try:
            examples.clean_captions(texts or [" . "])
        except examples.BrokenExample as error:
            raise UserError(f"{path}: {number}: {error}") from error
    names = tuple(found["class_names"].tolist()) if "class_names" in found else None
    return ArraySource(image, captions, found.get("label"), title=path, class_names=names)
