"""Texts in shards: the captions of a source, the lines of text files, or a column of tables."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from absl import logging

from big_align.core.errors import UserError, suggest
from big_align.data import boundary, files, listing, row_groups
from big_align.data.column_values import write_key
from big_align.data.derived.derived_source import key_of
from big_align.data.examples import BrokenExample, Source, strip
from big_align.data.sources.rows_source import read_csv
from big_align.data.table_lines import BadLines

SHARD_SIZE = 2**15
"""Lines of a file in one shard."""
TABLES = r"\.([ct]sv|parquet)$"


class TextShard(NamedTuple):
    """A shard of texts, with the name of their file.

    Reading returns the key of each and the text itself, "" for one that is absent.
    """

    name: str
    count: int
    read: Callable[[], tuple[list[str], list[str]]]


class TextShards:
    """Texts with their keys, a shard at a time."""

    def __init__(self, shards: Sequence[TextShard]):
        self._shards = list(shards)
        self.shard_sizes = np.array([shard.count for shard in self._shards], np.int64)
        if not self.shard_sizes.sum():
            raise UserError("there are no texts to embed")

    def shard_name(self, shard: int) -> str:
        """Names a shard."""
        return self._shards[shard].name

    def read(self, shard: int) -> tuple[list[str], list[str]]:
        """Returns the keys and the texts of a shard; "" means that a text is absent."""
        return self._shards[shard].read()


def list_captions(source: Source) -> TextShards:
    """Lists all captions of a source; those of one example share its key.

    An example that cannot be read is named in the log and left out.
    """

    def read(shard: int) -> tuple[list[str], list[str]]:
        keys, texts = [], []
        for index in range(int(source.shard_sizes[shard])):
            try:
                captions = boundary.read_texts(source, shard, index)[0]
            except BrokenExample as error:
                logging.warning("left out %s: %s", source.name(shard, index), error)
                continue
            keys += [key_of(source)(shard, index)] * len(captions)
            texts += captions
        return keys, texts

    # Texts are read twice, first to count them, so that memory for one shard is enough.
    return TextShards(
        [
            TextShard(source.shard_name(shard), len(read(shard)[1]), lambda s=shard: read(s))
            for shard in range(len(source.shard_sizes))
        ]
    )


def list_lines(paths: str) -> TextShards:
    """Lists the lines of text files (globs, braces, comma lists); a key is a line's number."""
    shards = []
    for path in _expand(paths):
        lines = list(map(strip, files.split_lines(files.read_text(path))))
        shards += _cut(path, [str(n) for n in range(1, len(lines) + 1)], lines)
    return TextShards(shards)


def list_column(paths: str, column: str, key: str | None = None) -> TextShards:
    """Lists a column of CSV, TSV or Parquet files, whatever else they contain.

    Paths are globs, braces and comma lists; None as `key` takes the number of the row, from 1 on.
    """
    shards = []
    for path in _expand(paths):
        if not re.search(TABLES, path, re.IGNORECASE):
            raise UserError(f"--column is for .csv, .tsv and .parquet files, which {path} is not")
        if path.lower().endswith(".parquet"):
            shards += _list_row_groups(path, column, key)
            continue
        _, rows = read_csv(BadLines(path), None, (column, key))
        header = next(rows)[1]
        _check_columns(path, header, column, key)
        cells = [cells for _, cells in rows]
        found = [row[header.index(key)] for row in cells] if key else range(1, len(cells) + 1)
        keys = list(map(write_key, found))
        _check_keys(path, key, keys)
        shards += _cut(path, keys, [strip(row[header.index(column)]) for row in cells])
    return TextShards(shards)


def _expand(paths: str) -> list[str]:
    try:
        return listing.expand_paths(paths)
    except ValueError as error:
        raise UserError(f"--source: {error}") from error


def _cut(path: str, keys: list[str], texts: list[str]) -> list[TextShard]:
    """Cuts the texts of a file into shards."""
    starts = range(0, len(texts), SHARD_SIZE)
    parts = [(keys[n : n + SHARD_SIZE], texts[n : n + SHARD_SIZE]) for n in starts]
    name = path.rpartition("/")[2]
    return [TextShard(name, len(part[1]), lambda part=part: part) for part in parts]


def _list_row_groups(path: str, column: str, key: str | None) -> list[TextShard]:
    """Makes a shard of each row group of a Parquet file."""
    try:
        with files.files_of(path).open(path) as file:
            table = row_groups.open_table(file)
            names, metadata = table.schema_arrow.names, table.metadata
            counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    _check_columns(path, names, column, key)
    starts = np.cumsum([0, *counts]).tolist()

    def read(group: int) -> tuple[list[str], list[str]]:
        try:
            with files.files_of(path).open(path) as file:
                wanted = [column, *([key] if key else [])]
                rows = row_groups.read_group(row_groups.open_table(file), group, wanted).to_pydict()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"row group {group} of {path} cannot be read: {error}") from error
        texts = [_read_text(text) for text in rows[column]]
        if strange := [text for text in texts if not isinstance(text, str)]:
            raise UserError(f"{path}: column {column!r} holds {strange[0]!r}, which is no text")
        numbers = range(starts[group] + 1, starts[group + 1] + 1)
        keys = list(map(write_key, rows[key] if key else numbers))
        _check_keys(path, key, keys, starts[group])
        return keys, list(map(strip, texts))

    name = path.rpartition("/")[2]
    return [TextShard(name, count, lambda g=g: read(g)) for g, count in enumerate(counts)]


def _read_text(value: Any) -> Any:
    """Returns "" for a missing text, and the digits of an integer: a title can be 1984."""
    return str(value) if type(value) is int else "" if value is None else value


def _check_keys(path: str, column: str | None, keys: Sequence[str], start: int = 0) -> None:
    """Refuses rows without a key: nobody could tell what was embedded."""
    for number, key in enumerate(keys, start=start + 1):
        if not key:
            raise UserError(
                f"{path}: row {number} has no key in column {column!r}; give it one, or leave out "
                "--key_column, so that keys are the numbers of rows"
            )


def _check_columns(path: str, names: Sequence[str], column: str, key: str | None) -> None:
    for flag, name in (("--column", column), ("--key_column", key)):
        if name is not None and name not in names:
            raise UserError(
                f"{flag}={name}: {path} has no such column{suggest(name, names)}; it has: "
                f"{', '.join(names)}"
            )
