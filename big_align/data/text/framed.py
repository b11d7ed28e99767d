"""Tokenizers that put the ids of a text between ids of their own."""

import abc
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32

from big_align.core.errors import check_at_least, check_known
from big_align.data.text.shortening import WAYS

Ids = tuple[Int32[np.ndarray, "n l"], Bool[np.ndarray, "n l"]]
"""The ids of texts, and which of them are real."""


class Frame(NamedTuple):
    """The ids at the start and at the end of every text, and the one that fills it up."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    pad: int


class FramedTokenizer(abc.ABC):
    """Makes texts of `length` ids: start, the ids of the text, end, then padding.

    A longer text keeps its first ids, and start and end. `shorten` is what training keeps of it
    instead (`shortening.WAYS`); `room` is how many ids of a text fit.
    """

    def __init__(self, length: int, frame: Frame, shorten: str):
        check_at_least(len(frame.start) + len(frame.end) + 1, length=length)
        check_known("shorten", shorten, WAYS)
        self.length, self.shorten = length, shorten
        self.room = length - len(frame.start) - len(frame.end)
        self._frame = frame

    def __call__(self, texts: Sequence[str]) -> Ids:
        return self.frame([ids[: self.room] for ids in self.encode(texts)])

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, all of them, without start and end."""

    def frame(self, rows: Sequence[Sequence[int]]) -> Ids:
        """Puts start and end around the ids of texts, at most `room` of each, and fills up."""
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        return self._fill(np.fromiter(itertools.chain.from_iterable(rows), np.int32), counts)

    def _fill(self, ids: Int32[np.ndarray, " i"], counts: Int[np.ndarray, " n"]) -> Ids:
        """Does the same with the ids of texts in a row, and how many are of each."""
        start, end, pad = self._frame
        counts, column = counts[:, None], np.arange(self.length)
        text = np.full((len(counts), self.length), pad, np.int32)
        text[:, : len(start)] = start
        inner = (column >= len(start)) & (column < counts + len(start))
        text[inner] = ids
        after = counts + len(start) + np.arange(len(end))
        np.put_along_axis(text, after, np.array(end, np.int32), 1)
        return text, column < counts + len(start) + len(end)
