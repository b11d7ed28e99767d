"""The raw pairs: which files there are, the source that reads each, and stretches of them."""

import dataclasses
import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from big_align.components import source_flags, tables
from big_align.components.signatures import lookup, make_named
from big_align.data import files
from big_align.data.examples import Source
from big_align.data.row_groups import open_table
from big_align.data.shard_offsets import ShardOffsets
from big_align.errors import UserError, put_in_a_line
from big_align.prepare.rules import draw_order

BY_FILE = ("tar", "parquet", "tfrecord", "csv", "imagefolder", "coco")
"""Kinds of source whose files are opened one by one, so that a damaged one affects no other."""
TOLERANT = ("csv", "imagefolder")
"""Kinds of source in which a bad line affects no other."""
OWN_ENDINGS = {".jsonl": "imagefolder", ".json": "coco"}
CHUNK = 2000  # examples of a piece of work, which is done again if it is killed
SAMPLED_FILES = 64
SAMPLED_STRETCHES = 16  # of a file, at most


class Stretch(NamedTuple):
    """Examples of an input file that are a piece of work: rows `start` to `stop`."""

    file: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of files about it; they sort in the order of the stretches."""
        return f"{self.file:06d}-{self.start:010d}"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of raw pairs.

    Attributes:
      kind: the kind of source, as in `config.data.source.name`.
      paths: the paths of the files, in order.
      arguments: other fields of the source, each "NAME=VALUE".
      stems: what the keys of each file's examples begin with.
      stamps: sizes and times of the files; these change when they do.
    """

    kind: str
    paths: tuple[str, ...]
    arguments: tuple[str, ...]
    stems: tuple[str, ...]
    stamps: tuple[str, ...]

    def open(self, file: int) -> Source:
        """Opens the source of a file; the last ones are kept open.

        Raises:
          ValueError, OSError: it cannot be used; the message names it.
        """
        return _open_source(self.kind, self.paths[file], self.arguments)

    def count_empty(self, file: int, examples: int) -> int:
        """Returns how many rows of a file have no image, if its source skips them."""
        if self.kind != "parquet":
            return 0
        with files.files_of(self.paths[file]).open(self.paths[file]) as table:
            return max(0, open_table(table).metadata.num_rows - examples)

    def key(self, file: int, row: int) -> str:
        """Returns the key of an example, which says where it comes from."""
        return f"{self.stems[file]}-{row:09d}"


def find_inputs(
    path: str,
    kind: str | None = None,
    arguments: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
) -> Inputs:
    """Lists the files of raw pairs.

    Args:
      path: files or a folder; globs, braces and comma lists, local or remote.
      kind: the kind of source; None infers it from the path.
      arguments: other fields of the source, each "NAME=VALUE".
      keep: columns, or members of tar shards, that will be read as well.

    Raises:
      UserError: nothing is there, or the path does not show what is there.
    """
    ending = posixpath.splitext(path.rstrip("}").rpartition(",")[2])[1].lower()
    try:
        kind = kind or OWN_ENDINGS.get(ending) or source_flags.recognize_source(path)
    except UserError as error:
        raise UserError(str(error).replace("--source", "--input")) from error
    lookup(kind, tables.SOURCES, "--input_name")
    if keep and kind == "tar":
        arguments = (*arguments, f"columns={keep!r}")
    single = kind not in BY_FILE or os.path.isdir(path)
    try:
        paths = [path] if single else files.expand_paths(path)
        stamps = tuple("" if single else _stamp(each) for each in paths)
    except (ValueError, OSError) as error:
        raise UserError(f"--input: {put_in_a_line(str(error))}") from error
    return Inputs(kind, tuple(paths), arguments, tuple(_choose_stems(paths)), stamps)


def _stamp(path: str) -> str:
    size, changed = files.files_of(path).stamp(path)
    return f"{size} {changed}"


def _choose_stems(paths: list[str]) -> Iterator[str]:
    """Yields a name for each file: its path below their common folder, without dots.

    Anything after a dot would not be part of a key in a shard.
    """
    folders = [path.rpartition("/")[0] for path in paths]
    common = (
        posixpath.commonpath(folders)
        if len({"://" in f or f[:1] for f in folders}) == 1 and ("://" not in paths[0])
        else ""
    )
    seen: set[str] = set()
    for path in paths:
        name = path.removeprefix(common).strip("/") if common else path.rpartition("/")[2]
        name = posixpath.splitext(name)[0] or path
        stem = re.sub(r"[^\w-]+", "_", name).strip("_")[-80:] or "pairs"
        if stem in seen:
            stem = f"{stem}-{hashlib.blake2b(path.encode(), digest_size=4).hexdigest()}"
        seen.add(stem)
        yield stem


@functools.lru_cache(maxsize=2)
def _open_source(kind: str, path: str, arguments: tuple[str, ...]) -> Source:
    if kind in ("tar", "parquet", "tfrecord"):
        # in a list, commas and brackets are part of the name
        node = {"name": kind, "path": [path]}
        node |= source_flags.read_values(arguments, "--input_argument")
        return make_named(tables.SOURCES, node, "--input")
    if kind in TOLERANT:
        arguments = ("skip_bad_lines=True", *arguments)
    return source_flags.open_source(path, kind, arguments, captions=True)[0]


def list_stretches(file: int, count: int, chunk: int = CHUNK) -> list[Stretch]:
    """Cuts a file of `count` examples into stretches."""
    return [Stretch(file, at, min(at + chunk, count)) for at in range(0, count, chunk)]


def sample_files(inputs: Inputs, seed: int) -> list[int]:
    """Returns the numbers of the files that a dry run reads, sorted."""
    numbers = sorted(range(len(inputs.paths)), key=lambda n: draw_order(seed, inputs.stems[n]))
    return sorted(numbers[:SAMPLED_FILES])


def sample_stretches(file: int, count: int, wanted: int, seed: int) -> list[Stretch]:
    """Draws stretches of a file that hold about `wanted` examples in all."""
    if wanted >= count:
        return list_stretches(file, count)
    size = max(1, -(-wanted // SAMPLED_STRETCHES))
    stretches = list_stretches(file, count, size)
    stretches.sort(key=lambda stretch: draw_order(seed, stretch.name))
    return sorted(stretches[: -(-wanted // size)])


def locate(source: Source, stretch: Stretch) -> Iterator[tuple[int, int, int]]:
    """Yields the number of each example of a stretch in its file, its shard and its index there."""
    offsets = ShardOffsets(source.shard_sizes)
    for row in range(stretch.start, stretch.stop):
        yield row, *offsets.locate_one(row)
