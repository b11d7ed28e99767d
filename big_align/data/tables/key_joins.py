"""Joins rows of a table to images by what they call them: files, names, keys, or SHARD/KEY.

Two shards may use the same keys. Then a key alone names several images, and SHARD/KEY names one.
"""

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from big_align.data.sources.table_source import IMAGE_FOLDERS, join

SHARD = re.compile(r"(.*?)(?:, row group \d+)?( \(\d+\))?", re.DOTALL)
ENDING = re.compile(r"\.(tar|parquet|[ct]sv|jsonl?|txt)$", re.IGNORECASE)


class ImageNames(NamedTuple):
    """What images are called."""

    names: Sequence[str]  # the path of each file, or its place in a shard; each once
    keys: Sequence[str]  # what the source calls each
    shards: Sequence[str]  # the shard of each, as the source names it


class RowJoin(NamedTuple):
    """Which row belongs to which image."""

    rows: list[int | None]  # the first row of each image
    shared: dict[int, list[int]]  # rows that name several images, and so none
    repeated: dict[int, list[int]]  # images that several rows name
    unused: list[int]  # rows that name no image


def join_rows(called: Sequence[str], folder: str, images: ImageNames) -> RowJoin:
    """Finds the image of each row of a table; "" calls none.

    A row calls its image by its path, relative to the table's folder, to the folder `images` in it,
    or to the current folder; by its name; by its key; or by SHARD/KEY. The first that is there
    counts.
    """
    find = _Finder(folder, images)
    found = list(map(find, called))
    rows: dict[int, list[int]] = defaultdict(list)
    for row, numbers in enumerate(found):
        if len(numbers) == 1:
            rows[numbers[0]].append(row)
    return RowJoin(
        [rows[n][0] if n in rows else None for n in range(len(images.names))],
        {row: numbers for row, numbers in enumerate(found) if len(numbers) > 1},
        {number: each for number, each in rows.items() if len(each) > 1},
        [row for row, numbers in enumerate(found) if not numbers],
    )


def spell_shortly(shards: Iterable[str]) -> dict[str, str]:
    """Returns what the SHARD of SHARD/KEY is, by shard: the name of its file without the ending.

    If files in different folders have the same name, it is the path.
    """
    spelled = {shard: _spell_shard(shard) for shard in shards}
    files = {each[0] for each in spelled.values()}
    short = {each[-1] for each in spelled.values()}
    return {shard: each[-1 if len(short) == len(files) else 0] for shard, each in spelled.items()}


def find_repeated(
    read: Callable[[], Iterator[tuple[str, Sequence[str]]]], within: bool
) -> tuple[str, list[str]] | None:
    """Returns a key that occurs more than once, and the shards that have it; None if none does.

    A key that occurs in one file alone counts only with `within`: its rows may belong together.
    """
    hashes: dict[str, list[np.ndarray]] = defaultdict(list)
    for shard, keys in read():
        made = np.array([hash(key) for key in keys if key], np.int64)
        hashes[_spell_shard(shard)[0]].append(made)
    parts = [np.concatenate(part) for part in hashes.values()]
    values, counts = np.unique(
        np.concatenate([part if within else np.unique(part) for part in parts] or [[]]),
        return_counts=True,
    )
    again = set(values[counts > 1].tolist())
    found: dict[str, list[str]] = defaultdict(list)
    for shard, keys in read() if again else ():
        there = [key for key in keys if key and hash(key) in again]
        for key in there if within else dict.fromkeys(there):
            found[key].append(shard)
            files = {_spell_shard(each)[0] for each in found[key]}
            if len(found[key]) > 1 and (within or len(files) > 1):
                return key, found[key]
    return None


class _Finder:
    """Finds the images that a row's name of one means."""

    def __init__(self, folder: str, images: ImageNames):
        self._folders = [folder, *(join(folder, name) for name in IMAGE_FOLDERS), ""]
        self._shards = images.shards
        self._names, self._keys = defaultdict(list), defaultdict(list)
        for number, (name, key) in enumerate(zip(images.names, images.keys, strict=True)):
            self._names[_normalize(name)].append(number)
            self._keys[key].append(number)
        self._files = {name.rpartition("/")[2] for name in images.names}

    def __call__(self, called: str) -> list[int]:
        if not called:
            return []
        for folder in self._folders if called.rpartition("/")[2] in self._files else ():
            path = _normalize(join(folder, called))
            if path in self._names:
                return self._names[path]
        if called in self._keys:
            return self._keys[called]
        for place in (match.start() for match in re.finditer("/", called)):
            shard, key = called[:place], called[place + 1 :]
            numbers = self._keys.get(key, ())
            if found := [n for n in numbers if shard in _spell_shard(self._shards[n])]:
                return found
        return []


def _spell_shard(name: str) -> list[str]:
    """Returns how the file of a shard can be called: its path, its name, and this without ending.

    Row groups of a Parquet file are shards of the same file.
    """
    path, times = SHARD.fullmatch(name).groups("")
    file = posixpath.basename(path)
    return [path + times, file + times, ENDING.sub("", file) + times]


def _normalize(name: str) -> str:
    """Gives `./a.jpg`, `a.jpg` and its absolute path the same name."""
    return name if "://" in name else os.path.abspath(name)
