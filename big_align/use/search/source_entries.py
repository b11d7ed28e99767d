"""The content of a source for an index: names, what changes when an image does, thumbnails."""

import collections
import concurrent.futures
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from big_align.core.errors import put_in_a_line
from big_align.data import boundary, files
from big_align.data.column_values import spell_halves
from big_align.data.examples import BrokenExample, Source, has_keys
from big_align.data.loading import parallel
from big_align.data.precomputed.shard_files import list_shards
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.listed_source import ListedSource
from big_align.pages.thumbnails import make_thumbnail
from big_align.use.search.stores.digests import digest_text, find_among
from big_align.use.search.stores.store import IndexEntry

AHEAD = 64  # images that are read and not yet taken
BLOCK = 65536
Item = tuple[tuple[int, int], str, str]
"""An image that is not read yet: the shard and its number there, its path, and its name."""


class LoadedEntry(NamedTuple):
    """An image, read as far as it is needed."""

    entry: IndexEntry | None  # None if it cannot be read
    image: Any = None  # encoded, or pixels; None if it is known
    thumbnail: bytes = b""  # a JPEG; empty if it is known or not wanted
    fault: str = ""  # why it, or if there is an entry its texts, cannot be used


class SourceEntries:
    """Reads the images of a source in its order, with threads; known ones are not read.

    Thumbnails have so many pixels on their longer side; 0 for none. Of each image a digest of its
    path is kept, and no more: an index can have more images than objects fit into memory.
    """

    def __init__(self, source: Source, side: int):
        self._source, self._side = source, side
        self._files = None
        # The names of a listed source contain line numbers, which change.
        self._read_path = source.key if isinstance(source, ListedSource) else source.name
        if isinstance(source, ListedSource | FilePairsSource) and len(self):
            self._files = files.files_of(self._read_path(*next(self._list_places())))
        self._shards = [shard.name for shard in list_shards(source)]
        self._firsts = np.cumsum(source.shard_sizes) - source.shard_sizes
        paths = (spell_halves(self._read_path(*place)) for place in self._list_places())
        digests = np.fromiter(map(digest_text, paths), np.int64, len(self))
        digests.sort()
        self._repeated = set(digests[1:][digests[1:] == digests[:-1]].tolist())
        if self._repeated:  # then some names are not their paths
            names = (item[2] for block in self.list_blocks(None) for item in block)
            digests = np.sort(np.fromiter(map(digest_text, names), np.int64, len(self)))
        self._digests = digests

    def __len__(self) -> int:
        return int(self._source.shard_sizes.sum())

    def has(self, names: Sequence[str]) -> Bool[np.ndarray, "n"]:
        """Returns which names are those of images of the source."""
        return find_among(self._digests, names)

    def list_keys(self) -> Iterator[tuple[str, str, str]]:
        """Yields the name, key and shard of each image."""
        for block in self.list_blocks(BLOCK):
            for place, _, name in block:
                yield name, self._read_key(place, name), self._shards[place[0]]

    def list_blocks(self, size: int | None) -> Iterator[list[Item]]:
        """Yields the images, so many at a time; all at once if the size is None.

        Names can be written as UTF-8; the second of a name is "NAME (2)".
        """
        seen: collections.Counter[str] = collections.Counter()
        for places in _batch(self._list_places(), size or max(1, len(self))):
            block = []
            for place in places:
                path = self._read_path(*place)
                name = spell_halves(path)
                if self._repeated and digest_text(name) in self._repeated:
                    seen[name] += 1
                    name += f" ({seen[name]})" * (seen[name] > 1)
                block.append((place, path, name))
            yield block

    def _list_places(self) -> Iterator[tuple[int, int]]:
        for shard, size in enumerate(self._source.shard_sizes.tolist()):
            for index in range(size):
                yield shard, index

    def load(
        self, block: Sequence[Item], is_known: Callable[[str, str], bool]
    ) -> Iterator[LoadedEntry]:
        """Yields every image of a block; one with a known name and signature need not be read."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            started = (threads.submit(self._load, *item, is_known) for item in block)
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
        label = spell_halves("|".join(shown)) if shown else None
        where = self._shards[place[0]], int(self._firsts[place[0]]) + place[1]
        key = self._read_key(place, name)
        return IndexEntry(name, key, *where, signature, captions, label)

    def _read_key(self, place: tuple[int, int], name: str) -> str:
        return spell_halves(self._source.key(*place) if has_keys(self._source) else name)


def _digest(image: Any) -> str:
    data = image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _batch(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while block := list(itertools.islice(items, size)):
        yield block
