"""Columns about images, from a table that names their files or keys."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from big_align.data import columns, files, listing
from big_align.data.sources.table_source import join, read_json
from big_align.errors import UserError, put_in_a_line

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
KEYS = (("key",), ("name",), *columns.FILES)
CAPTIONS = {name for group in columns.CAPTIONS for name in group}
LABEL = "label"
"""The column of the classes that the source knows."""


class MetadataTable:
    """The columns of a table, looked up by the names and keys of images.

    Columns of captions, and those that hold no plain values, such as encoded images, are skipped.
    If an image has several rows, the first counts.

    Args:
      path: CSV, TSV, JSON lines, a JSON list of objects, or Parquet, with the names of columns;
        globs of Parquet.
      key: the column that names images; None finds it by the usual names.
      own: whether it is the table of the source itself, whose column of files names its images,
        and a column `name` or `key` something else.

    Attributes:
      key: the column that names images.

    Raises:
      UserError: it cannot be read, or it is unclear which column names images.
    """

    def __init__(self, path: str, key: str | None = None, own: bool = False):
        self._path = path
        groups = columns.FILES if own else KEYS
        table = _read_table(path, [key] if key else [name for group in groups for name in group])
        if twice := [n for n, count in Counter(table.column_names).items() if count > 1]:
            raise UserError(f"{path} has the column {twice[0]!r} twice: rename or remove one")
        found = columns.choose("key", key, table.column_names, groups, path)
        if found is None:
            raise UserError(
                f"{path} has no column with a usual name of images; it has "
                f"{columns.list_names(table.column_names)}: give --metadata_key=COLUMN"
            )
        self.key = found
        folder = path.rpartition("/")[0]
        self._rows: dict[str, int] = {}
        for row, name in enumerate(map(str, table[found].to_pylist())):
            self._rows.setdefault(_normalize(name), row)
            self._rows.setdefault(_normalize(join(folder, name)), row)
        kept = [
            name for name in table.column_names
            if name != found and name.lower() not in CAPTIONS and _is_plain(table[name].type)
        ]  # fmt: skip
        self._table = _store_as_parquet(table.select(kept))

    def align(self, names: Sequence[str], keys: Sequence[str]) -> tuple[pa.Table, int]:
        """Returns the columns with one row per image, null if the table has none.

        Args:
          names: the names of the images.
          keys: the keys of the images; they are looked up if a name is not found.

        Returns:
          The columns, and how many images have a row.
        """
        pairs = zip(names, keys, strict=True)
        found = [self._rows.get(_normalize(n), self._rows.get(_normalize(k))) for n, k in pairs]
        taken = self._table.take(pa.array(found, pa.int64()))
        if not taken.num_columns:  # then it has no rows either
            taken = empty_metadata(len(found))
        return taken, sum(row is not None for row in found)


def add_labels(metadata: pa.Table, labels: Sequence[str | None]) -> pa.Table:
    """Adds the column of classes, unless no image has one or the table has such a column."""
    if LABEL in metadata.column_names or not any(label is not None for label in labels):
        return metadata
    return metadata.append_column(LABEL, pa.array(labels, pa.string()))


def empty_metadata(count: int) -> pa.Table:
    """Returns a table of `count` rows without columns that filters could compare."""
    return pa.table({"row": np.arange(count)})


def _make_table(rows: Any) -> pa.Table:
    """Makes a table of a list of objects, which may have different fields."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it has no list of JSON objects")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _read_table(path: str, texts: Sequence[str]) -> pa.Table:
    """Reads a table; `texts` are columns that are texts, whatever they look like (keys: 000012)."""
    ending = next((e for e in TABLES if path.lower().endswith(e)), None)
    if ending is None:
        raise UserError(f"--metadata={path}: it must end in {', '.join(TABLES)}")
    try:
        if ending == ".parquet":
            return pa.concat_tables(
                [pq.read_table(name) for name in listing.expand_paths(path)],
                promote_options="permissive",
            )
        if ending == ".json":
            return _make_table(read_json(path))
        with files.files_of(path).open(path) as file:
            if ending == ".jsonl":
                return pa.json.read_json(file)
            data = file.read()
        parsing = pa.csv.ParseOptions(delimiter=_find_delimiter(data), newlines_in_values=True)
        missing = pa.csv.ConvertOptions(
            null_values=[""],
            strings_can_be_null=True,
            column_types=dict.fromkeys(texts, pa.string()),
        )
        return pa.csv.read_csv(
            pa.BufferReader(data), parse_options=parsing, convert_options=missing
        )
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"--metadata={path} cannot be read: {put_in_a_line(str(error))}") from error


def _store_as_parquet(table: pa.Table) -> pa.Table:
    """Returns a table that equals itself after it is written and read: an update is then no change.

    Timestamps are in microseconds, as Python has them, times of day in milliseconds or less, and
    NaN is a missing value.
    """
    for place, field in enumerate(table.schema):
        column = table[place]
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us", field.type.tz), safe=False)
        elif field.type == pa.time32("s"):
            column = column.cast(pa.time32("ms"))
        elif pa.types.is_date64(field.type):
            column = column.cast(pa.date32())
        elif pa.types.is_floating(field.type):
            column = column.cast(pa.float32()) if pa.types.is_float16(field.type) else column
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        table = table.set_column(place, field.name, column)
    return table


def _find_delimiter(data: bytes) -> str:
    """Returns which is most frequent in the first line: a comma, a tab or a semicolon."""
    line = data.partition(b"\n")[0].decode("utf-8", "replace")
    return max(",\t;", key=line.count)


def _normalize(name: str) -> str:
    """Gives `./a.jpg`, `a.jpg` and its absolute path the same name."""
    return name if "://" in name else os.path.abspath(name)


def _is_plain(kind: pa.DataType) -> bool:
    """Returns whether values are numbers, texts, dates or booleans, which can be compared."""
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or binary)
