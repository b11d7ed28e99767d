"""The content of a source for an index: names, what changes when an image does, thumbnails."""

import collections
import concurrent.futures
import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from big_align.core.errors import put_in_a_line
from big_align.data import boundary, files
from big_align.data.column_values import spell_halves
from big_align.data.examples import BrokenExample, Source, has_keys
from big_align.data.loading import parallel
from big_align.data.precomputed.shard_files import list_shards
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.listed_source import ListedSource
from big_align.pages.thumbnails import make_thumbnail

AHEAD = 64  # images that are read and not yet taken


class IndexEntry(NamedTuple):
    """An image of a source."""

    name: str  # identifies it: the path of its file, or its place in a shard
    key: str  # what the source calls it
    shard: str  # the shard that it is in; the second of one name is "NAME (2)"
    number: int  # which example of the source it is
    signature: str  # changes with the file, or with the encoded image if it has no file of its own
    captions: list[str]
    label: str | None  # the names of its classes, or their numbers; None if it has none


class LoadedEntry(NamedTuple):
    """An image, read as far as it is needed."""

    entry: IndexEntry | None  # None if it cannot be read
    image: Any = None  # encoded, or pixels; None if it is known
    thumbnail: bytes = b""  # a JPEG; empty if it is known or not wanted
    fault: str = ""  # why it, or if there is an entry its texts, cannot be used


class SourceEntries:
    """Reads the images of a source in its order, with threads; known ones are not read.

    Thumbnails have so many pixels on their longer side; 0 for none.
    """

    def __init__(self, source: Source, side: int):
        self._source, self._side = source, side
        self._files = None
        places = [
            (shard, index)
            for shard, size in enumerate(source.shard_sizes.tolist()) for index in range(size)
        ]  # fmt: skip
        read_name = source.name
        if isinstance(source, ListedSource):
            read_name = source.key  # its names contain line numbers, which change
        paths = [read_name(*place) for place in places]
        if isinstance(source, ListedSource | FilePairsSource) and paths:
            self._files = files.files_of(paths[0])
        self.names = _make_unique(paths)
        self._shards = [shard.name for shard in list_shards(source)]
        self._firsts = np.cumsum(source.shard_sizes) - source.shard_sizes
        self._items = list(zip(places, paths, self.names, strict=True))

    def __len__(self) -> int:
        return len(self._items)

    def load(self, is_known: Callable[[str, str], bool]) -> Iterator[LoadedEntry]:
        """Yields every image; one whose name and signature are known need not be read."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            started = (threads.submit(self._load, *item, is_known) for item in self._items)
            yield from parallel.take_ahead(started, AHEAD)

    def _load(
        self, place: tuple[int, int], path: str, name: str, is_known: Callable[[str, str], bool]
    ) -> LoadedEntry:
        try:
            with boundary.ONE_EXAMPLE:
                signature, known = "", False
                if self._files is not None:
                    size, changed = self._files.stamp(path)
                    signature = f"{size} {changed}"
                    known = is_known(name, signature)
                image, *texts, fault = self._read(place, with_image=not known)
                signature = signature or _digest(image)
                entry = self._make_entry(place, name, signature, *texts)
                if known or is_known(name, signature):
                    return LoadedEntry(entry, fault=fault)
                # An image is decoded here even if thumbnails are not wanted: is it broken?
                thumbnail = make_thumbnail(image, self._side or 8)
                return LoadedEntry(entry, image, thumbnail if self._side else b"", fault)
        except BrokenExample as error:
            return LoadedEntry(None, fault=f"{name}: {put_in_a_line(str(error))}")

    def _read(
        self, place: tuple[int, int], with_image: bool
    ) -> tuple[Any, list[str], tuple[int, ...], str]:
        """Returns an image, its captions and labels, and why it has none if they are unusable."""
        try:
            if with_image:
                example = boundary.read_example(self._source, *place)
                return example.image, example.captions, example.labels, ""
            return None, *boundary.read_texts(self._source, *place), ""
        except BrokenExample as error:
            if not hasattr(self._source, "read_image"):
                raise
            image = self._source.read_image(*place) if with_image else None
            return image, [], (), put_in_a_line(str(error))

    def _make_entry(
        self,
        place: tuple[int, int],
        name: str,
        signature: str,
        captions: list[str],
        labels: tuple[int, ...],
    ) -> IndexEntry:
        names = self._source.class_names
        shown = [names[n] if names and n < len(names) else str(n) for n in labels]
        key = self._source.key(*place) if has_keys(self._source) else name
        label = spell_halves("|".join(shown)) if shown else None
        where = self._shards[place[0]], int(self._firsts[place[0]]) + place[1]
        return IndexEntry(name, spell_halves(key), *where, signature, captions, label)


def _make_unique(paths: list[str]) -> list[str]:
    """Makes names that can be written as UTF-8; the second of a name is "NAME (2)"."""
    seen, names = collections.Counter(), []
    for path in paths:
        name = spell_halves(path)
        seen[name] += 1
        names.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return names


def _digest(image: Any) -> str:
    data = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
