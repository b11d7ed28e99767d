"""Images in files of their own, listed with labels and captions."""

import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from big_align.data import examples, files


class PackedTexts(Sequence[str]):
    """An immutable list of texts, which may contain halves of surrogate pairs."""

    def __init__(self, texts: Iterable[str]):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._bytes = np.array(bytearray().join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._read(number) for number in range(*place.indices(len(self)))]
        return self._read(range(len(self))[operator.index(place)])

    def _read(self, number: int) -> str:
        start, end = self._ends[number : number + 2].tolist()
        return self._bytes[start:end].tobytes().decode("utf-8", "surrogatepass")


SHARD_SIZE = 16
"""Examples of a shard. Lists are often sorted by class; `Shuffle` permutes the shards over the
whole list before it shuffles in windows, so that a window, and a batch, holds all classes."""


class ListedSource:
    """Examples whose images are files; the images are read on demand.

    A caption may be a list written as a text; without `captions` none are read. `lines` are those
    of the examples in the list, which messages count in the unit, and `faults` say why the captions
    of some examples cannot be used.
    """

    def __init__(
        self,
        title: str,
        paths: Sequence[str],
        labels: Sequence[tuple[int, ...]],
        captions: Sequence[Sequence[str]] | None = None,
        class_names: tuple[str, ...] | None = None,
        lines: Sequence[int] | None = None,
        faults: Mapping[int, str] | None = None,
        unit: str = "line",
    ):
        self._title, self._unit = title, unit
        self._files = files.files_of(paths[0])
        self._paths = PackedTexts(paths)
        self._labels = np.array([label for row in labels for label in row], np.int32)
        self._label_ends = np.cumsum([len(row) for row in labels])
        self._captions = None
        if captions is not None:
            self._captions = PackedTexts(text for row in captions for text in row)
            self._caption_ends = np.cumsum([len(row) for row in captions])
        self.rows = None if lines is None else np.array(lines, np.int64)
        self._faults = dict(faults or {})
        self.class_names = class_names
        starts = np.arange(0, len(paths), SHARD_SIZE)
        self.shard_sizes = np.minimum(SHARD_SIZE, len(paths) - starts).astype(np.int64)
        self.broken = np.zeros(len(starts), np.int64)

    read = examples.read_in_parts

    def read_image(self, shard: int, index: int) -> bytes:
        """Reads the file; raises BrokenExample."""
        path = self._paths[shard * SHARD_SIZE + index]
        try:
            return self._files.read_all(path)
        except FileNotFoundError as error:
            raise examples.BrokenExample(f"there is no file {path}") from error
        except (OSError, ValueError) as error:  # also a folder, a pipe, a path with a zero byte
            raise examples.BrokenExample(f"{path} cannot be read: {error}") from error

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Returns captions and labels; raises BrokenExample if captions are wanted but empty."""
        number = shard * SHARD_SIZE + index
        captions = []
        if number in self._faults:
            raise examples.BrokenExample(self._faults[number])
        if self._captions is not None:
            texts = self._captions[_stretch(self._caption_ends, number)]
            captions = [
                c for text in texts if examples.strip(text) for c in examples.clean_captions(text)
            ]
            if not captions:
                raise examples.BrokenExample("the caption is empty")
        return captions, tuple(self._labels[_stretch(self._label_ends, number)].tolist())

    def name(self, shard: int, index: int) -> str:
        """Names an example by its line, as in `train.csv, line 43`, or by its file."""
        number = shard * SHARD_SIZE + index
        if self.rows is None:
            return self._paths[number]
        return f"{self._title}, {self._unit} {self.rows[number]}"

    def key(self, shard: int, index: int) -> str:
        return self._paths[shard * SHARD_SIZE + index]

    def shard_name(self, shard: int) -> str:
        """Names a stretch of the list."""
        first = shard * SHARD_SIZE
        size = int(self.shard_sizes[shard])
        return f"{self._title} ({size} examples from {self._paths[first]} on)"


def _stretch(ends: np.ndarray, number: int) -> slice:
    """Returns the slice of an example's values among those of all examples."""
    return slice(int(ends[number - 1]) if number else 0, int(ends[number]))
