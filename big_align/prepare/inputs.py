"""The raw pairs: which files there are, the source that reads each, and stretches of them."""

import contextlib
import dataclasses
import functools
import os
import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from big_align.config.components import source_flags, tables
from big_align.config.components.signatures import lookup, make_named
from big_align.core.digests import hash_bytes
from big_align.core.errors import UserError, put_in_a_line
from big_align.data import files, listing
from big_align.data.examples import Source
from big_align.data.row_groups import open_table
from big_align.data.shard_offsets import ShardOffsets
from big_align.prepare.rules import draw_order

BY_FILE = ("tar", "parquet", "tfrecord", "csv", "imagefolder", "coco")
"""Kinds of source whose files are opened one by one, so that a damaged one affects no other."""
TOLERANT = ("csv", "imagefolder")
"""Kinds of source in which a bad line affects no other."""
SKIPPING = ("parquet", "csv", "imagefolder")
"""Kinds of source that leave rows out, so that the number of an example is not its row."""
OWN_ENDINGS = {".jsonl": "imagefolder", ".json": "coco"}
CHUNK = 2000  # examples of a piece of work, which is done again if it is killed
SAMPLED_FILES = 64
SAMPLED_STRETCHES = 16  # of a file, at most


class Stretch(NamedTuple):
    """Examples of an input file that are a piece of work: those in rows `start` to `stop`."""

    file: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of files about it; they sort in the order of the stretches."""
        return f"{self.file:06d}-{self.start:010d}"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of raw pairs."""

    kind: str  # of source, as in `config.data.source.name`
    paths: tuple[str, ...]  # of the files, in order
    arguments: tuple[str, ...]  # other fields of the source, each "NAME=VALUE"
    stems: tuple[str, ...]  # what the keys of each file's examples begin with
    stamps: tuple[str, ...]  # sizes and times of the files, which change when they do

    def open(self, file: int) -> Source:
        """Opens the source of a file; the last ones are kept open."""
        return _open_source(self.kind, self.paths[file], self.arguments)

    def find_empty(self, file: int, rows: "FileRows") -> list[int]:
        """Returns which rows of a file have no image, if its source skips them."""
        if self.kind != "parquet":
            return []
        with files.files_of(self.paths[file]).open(self.paths[file]) as table:
            count = open_table(table).metadata.num_rows
        return np.setdiff1d(np.arange(count), rows.numbers).tolist()

    def key(self, file: int, row: int) -> str:
        """Returns the key of an example by its row in `FileRows`: it says where it comes from."""
        return f"{self.stems[file]}-{row:09d}"


def find_inputs(
    path: str, kind: str | None = None, arguments: tuple[str, ...] = (), keep: tuple[str, ...] = ()
) -> Inputs:
    """Lists the files of raw pairs; UserError if nothing is there, or not what the path shows.

    The path is files or a folder, with globs, braces and comma lists, local or remote, from which
    the kind of source is inferred if it is None. The arguments are other fields of the source, each
    "NAME=VALUE"; columns, or members of tar shards, to `keep` are read as well.
    """
    ending = posixpath.splitext(path.rstrip("}").rpartition(",")[2])[1].lower()
    try:
        kind = kind or OWN_ENDINGS.get(ending) or source_flags.recognize_source(path)
    except UserError as error:
        raise UserError(rename_flags(str(error))) from error
    lookup(kind, tables.SOURCES, "--input_name")
    if keep and kind == "tar":
        arguments = (*arguments, f"columns={keep!r}")
    single = kind not in BY_FILE or os.path.isdir(path)
    try:
        paths = [path] if single else listing.expand_paths(path)
        stamps = tuple(_stamp_folder(each) if single else _stamp(each) for each in paths)
    except (ValueError, OSError) as error:
        raise UserError(f"--input: {put_in_a_line(str(error))}") from error
    return Inputs(kind, tuple(paths), arguments, tuple(_choose_stems(paths)), stamps)


def rename_flags(message: str) -> str:
    """Returns a message about a source with the flags that it has here."""
    return message.replace("--source", "--input")


def _stamp(path: str) -> str:
    size, changed = files.files_of(path).stamp(path)
    return f"{size} {changed}"


def _stamp_folder(path: str) -> str:
    """Returns a digest of the files below a folder or of a glob; "" for what is elsewhere."""
    if "://" in path:
        return ""
    try:
        named = [path] if os.path.isdir(path) else listing.expand_paths(path)
        found = [inner for name in named for inner in listing.list_inside(name)]
    except ValueError:  # the source says what is wrong, or it is no path at all
        return ""
    lines = []
    for name in found:
        with contextlib.suppress(OSError):  # a link that leads nowhere
            lines.append(f"{os.path.relpath(name, path)} {_stamp(name)}\n")
    return hash_bytes("".join(lines)).hex()


def _choose_stems(paths: list[str]) -> Iterator[str]:
    """Yields a name for each file: its path below their common folder, without dots.

    Anything after a dot would not be part of a key in a shard.
    """
    local = not any("://" in path for path in paths)
    if local:  # `./raw` and `raw/` are `raw`
        paths = [posixpath.normpath(path) for path in paths]
    folders = [path.rpartition("/")[0] for path in paths]
    whole = local and len({folder[:1] == "/" for folder in folders}) == 1
    common = posixpath.commonpath(folders) if whole else ""
    seen: set[str] = set()
    for path in paths:
        name = path.removeprefix(common).strip("/") if whole else path.rpartition("/")[2]
        name = posixpath.splitext(name)[0] or path
        stem = re.sub(r"[^\w-]+", "_", name).strip("_")[-80:] or "pairs"
        if stem in seen:
            stem = f"{stem}-{hash_bytes(path, 4).hex()}"
        seen.add(stem)
        yield stem


@functools.lru_cache(maxsize=2)
def _open_source(kind: str, path: str, arguments: tuple[str, ...]) -> Source:
    if kind in ("tar", "parquet", "tfrecord"):
        # in a list, commas and brackets are part of the name
        node = {"name": kind, "path": [path]}
        target = lookup(kind, tables.SOURCES, "--input_name")
        node |= source_flags.read_values(arguments, "--input_argument", target)
        return make_named(tables.SOURCES, node, "--input")
    if kind in TOLERANT:
        arguments = ("skip_bad_lines=True", *arguments)
    return source_flags.open_source(path, kind, arguments, captions=True)[0]


def list_stretches(file: int, count: int, chunk: int = CHUNK) -> list[Stretch]:
    """Cuts a file of `count` examples into stretches."""
    return [Stretch(file, at, min(at + chunk, count)) for at in range(0, count, chunk)]


def sample_stretches(file: int, count: int, wanted: int, seed: int) -> list[Stretch]:
    """Draws stretches of a file that hold about `wanted` examples in all."""
    if wanted >= count:
        return list_stretches(file, count)
    size = max(1, -(-wanted // SAMPLED_STRETCHES))
    stretches = list_stretches(file, count, size)
    stretches.sort(key=lambda stretch: draw_order(seed, stretch.name))
    return sorted(stretches[: -(-wanted // size)])


class FileRows:
    """In which row of its file each example of a source is; `numbers` ascend to below `count`.

    Rows of Parquet count from 0, with those that have no image. The row of a table is the line that
    names the image first, and lines count from 1. Examples of other files are numbered from 0.
    """

    def __init__(self, source: Source):
        self._offsets = ShardOffsets(source.shard_sizes)
        rows = getattr(source, "rows", None)
        self.numbers = np.arange(self._offsets.count) if rows is None else rows
        self.count = int(self.numbers[-1]) + 1 if self.numbers.size else 0

    def locate(self, stretch: Stretch) -> Iterator[tuple[int, int, int]]:
        """Yields the row of each example of a stretch, its shard and its index there."""
        first, end = np.searchsorted(self.numbers, (stretch.start, stretch.stop)).tolist()
        for number in range(first, end):
            yield int(self.numbers[number]), *self._offsets.locate_one(number)

    def find(self, row: int) -> tuple[int, int]:
        """Returns the shard and the index of the example in a row; UserError if it has none."""
        number = int(np.searchsorted(self.numbers, row))
        if number == len(self.numbers) or self.numbers[number] != row:
            raise UserError(f"there is no example in row {row}")
        return self._offsets.locate_one(number)
