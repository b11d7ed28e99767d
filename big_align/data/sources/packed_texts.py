"""Texts in one array: half the memory of Python's strings, and shared by all processes."""

import operator
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np


class PackedTexts(Sequence[str]):
    """An immutable list of texts.

    Args:
      texts: they may contain halves of surrogate pairs.
    """

    def __init__(self, texts: Iterable[str]):
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._bytes = np.array(bytearray().join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place):
        """Returns a text, or a list of texts."""
        if isinstance(place, slice):
            return [self._read(number) for number in range(*place.indices(len(self)))]
        return self._read(range(len(self))[operator.index(place)])

    def _read(self, number: int) -> str:
        start, end = self._ends[number : number + 2].tolist()
        return self._bytes[start:end].tobytes().decode("utf-8", "surrogatepass")
