"""Counts of more things than fit into memory: a count-min sketch."""

import functools
import hashlib
import io
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from big_align.core.errors import UserError
from big_align.core.regular_files import map_array
from big_align.data.shared import storage

WORD = 4  # bytes of a hash for each row
DEPTH = 5
SAMPLED = 64
"""One thing in this many is also counted exactly, to estimate the histogram of counts."""


class CountMinSketch:
    """Counts that are never too low, in memory that does not grow (Cormode and Muthukrishnan 2005).

    Each row counts everything in `width` cells, at most 2^32, by a hash of its own; the count of a
    thing is the smallest of its cells. With probability 1 - exp(-depth) it is too high by at most
    `error()`. There are at most 16 rows: a hash has 64 bytes, 4 per row.
    """

    def __init__(self, width: int, depth: int = DEPTH):
        self.table = np.zeros((depth, width), np.uint64)

    @property
    def total(self) -> int:
        """Everything that has been counted, N."""
        return int(self.table[0].sum())

    def error(self) -> float:
        """Returns the bound e N / width on how much too high a count is."""
        return math.e * self.total / self.table.shape[1]

    def confidence(self) -> float:
        """Returns the probability with which the bound holds for a count."""
        return 1 - math.exp(-self.table.shape[0])

    def add(self, counts: Mapping[bytes, int]) -> None:
        """Counts things, each as often as given."""
        many = np.fromiter(counts.values(), np.uint64, len(counts))
        for row, cells in zip(self.table, self._find_cells(counts), strict=True):
            np.add.at(row, cells, many)

    def estimate(self, things: Iterable[bytes]) -> np.ndarray:
        """Returns how often each thing was counted, or more: uint64 [n]."""
        cells = self._find_cells(things)
        return np.min([row[at] for row, at in zip(self.table, cells, strict=True)], axis=0)

    def __add__(self, other: "CountMinSketch") -> "CountMinSketch":
        """Returns the sketch of all that either has counted; raises ValueError if sizes differ."""
        if self.table.shape != other.table.shape:
            raise ValueError(f"sketches of {self.table.shape} and {other.table.shape} cells")
        merged = CountMinSketch(0)
        merged.table = self.table + other.table
        return merged

    def _find_cells(self, things: Iterable[bytes]) -> np.ndarray:
        """Returns the cell of each thing in each row: int64 [depth n]."""
        depth, width = self.table.shape
        hashed = b"".join(
            hashlib.blake2b(thing, digest_size=depth * WORD).digest() for thing in things
        )
        words = np.frombuffer(hashed, "<u4").reshape(-1, depth).T.astype(np.int64)
        return words * width >> 32

    def __getstate__(self) -> dict[str, Any]:
        # what a worker passes on is mostly zeros while it has seen little
        return {"shape": self.table.shape, "cells": zlib.compress(self.table.tobytes(), 1)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        cells = bytearray(zlib.decompress(state["cells"]))
        self.table = np.frombuffer(cells, np.uint64).reshape(state["shape"])


def choose_width(megabytes: int) -> int:
    """Returns how many cells a row has, a power of two, in a sketch of at most `megabytes` MiB."""
    if not 1 <= megabytes <= 2**14:
        raise UserError(f"--sketch_megabytes={megabytes} must be from 1 to 16,384")
    return 1 << (megabytes * 2**20 // (8 * DEPTH)).bit_length() - 1


def is_sampled(thing: bytes) -> bool:
    """Returns whether a thing is one of those that are also counted exactly."""
    return hashlib.blake2b(thing, digest_size=1, person=b"sampled").digest()[0] < 256 // SAMPLED


def write_sketch(path: str, sketch: CountMinSketch) -> None:
    with storage.open_whole(path) as file:
        np.save(file, sketch.table)


@functools.lru_cache(maxsize=4)
def read_sketch(path: str) -> CountMinSketch:
    """Opens a sketch; a local one is in memory once for all processes."""
    sketch = CountMinSketch(0)
    try:
        remote = "://" in path and np.load(io.BytesIO(storage.read_bytes(path) or b""))
        sketch.table = map_array(path) if remote is False else remote
    except (OSError, ValueError, EOFError, UserError) as error:
        raise UserError(f"{path} cannot be read: {error}; delete its folder") from error
    return sketch
