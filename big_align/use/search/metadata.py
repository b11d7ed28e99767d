"""Columns about images: from a table that names them, or from the source itself."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
from absl import logging

from big_align.core.errors import UserError, WrongValue
from big_align.data import boundary, columns
from big_align.data.column_values import write_key
from big_align.data.examples import BrokenExample, Source
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.sources.table_source import TableSource
from big_align.data.tables.key_joins import ImageNames, RowJoin, join_rows, spell_shortly
from big_align.data.tables.table_rows import TABLES, TableRows, read_rows
from big_align.use.search.stores.store import PLACEHOLDER, IndexEntry

KEYS = (("key",), ("name",), *columns.FILES)
CAPTIONS = {name for group in columns.CAPTIONS for name in group}
SHOWN = 5
"""Rows that a message lists."""
LABEL = "label"
"""The column of the classes that the source knows."""


class MetadataTable:
    """The columns of a table whose rows name images.

    Columns of captions, and those that hold no plain values, such as encoded images, are skipped.
    If an image has several rows, the first counts. A row that names several images describes none.
    The path may be a glob of Parquet; without a key, the column that names images is found by the
    usual names.
    """

    def __init__(self, path: str, key: str | None = None):
        if not path.lower().endswith(TABLES):
            raise WrongValue(f"--metadata={path}: it must end in {', '.join(TABLES)}")
        self._rows = read_rows(path, key)
        names = list(self._rows.columns)
        found = columns.choose("key", key, names, KEYS, path)
        if found is None:
            raise UserError(
                f"{path} has no column with a usual name of images; it has "
                f"{columns.list_names(names)}: give --metadata_key=COLUMN"
            )
        self.key = found
        values = self._rows.columns[found]
        values = values.to_pylist() if isinstance(values, pa.ChunkedArray) else values
        self._called = list(map(write_key, values))
        captions = [name for name in names if name.lower() in CAPTIONS]
        self._table = self._rows.make_table([found, *captions])

    def align(self, entries: Sequence[IndexEntry]) -> tuple[pa.Table, int]:
        """Returns the columns with one row per image, and how many images have a row.

        Rows that name several images, or none, and images with rows that differ are warned of.
        """
        named = zip(*((e.name, e.key, e.shard) for e in entries), strict=True)
        return _take(self._table, self._join(ImageNames(*named)))

    def fix(self, names: Iterable[tuple[str, str, str]]) -> "SourceMetadata":
        """Returns the columns for the images of a source: the name, key and shard of each."""
        return SourceMetadata(self._table, self._join(ImageNames(*zip(*names, strict=True))))

    def _join(self, images: ImageNames) -> list[int | None]:
        folder = self._rows.path.rpartition("/")[0]
        joined = join_rows(self._called, folder, images)
        self._tell_shared(joined, images)
        _tell_repeated(self._rows, self._table, joined.repeated.values())
        self._tell_unused(joined, images)
        return joined.rows

    def _tell_shared(self, joined: RowJoin, images: ImageNames) -> None:
        if not joined.shared:
            return
        row, numbers = next(iter(joined.shared.items()))
        named = " and ".join(images.names[number] for number in numbers[:2])
        shard, key = images.shards[numbers[0]], images.keys[numbers[0]]
        logging.warning(
            "%s: %d rows name several images each, and so describe none: %s; %r is %s: SHARD/KEY "
            "names one of them, as in %s/%s", self._rows.path, len(joined.shared),
            self._list(joined.shared), self._called[row], named,
            spell_shortly(set(images.shards))[shard], key,
        )  # fmt: skip

    def _list(self, rows: Collection[int]) -> str:
        """Lists rows for a message, the first few with what they call their images."""
        first = itertools.islice(rows, SHOWN)
        shown = [f"{self._rows.tell(row)} ({self._called[row]!r})" for row in first]
        more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        return ", ".join(shown) + more

    def _tell_unused(self, joined: RowJoin, images: ImageNames) -> None:
        if not joined.unused:
            return
        none = len(joined.unused) == len(self._called)
        logging.warning(
            "%s: %d of %d rows name no image of the index in the column %r: %s; the first image is "
            "%r, with the key %r%s", self._rows.path, len(joined.unused), len(self._called),
            self.key, self._list(joined.unused), images.names[0], images.keys[0],
            "; --metadata_key takes another column" * none,
        )  # fmt: skip


class SourceMetadata:
    """The columns of the source itself, which are known by the places of its examples.

    Each example of the source has a row of the table, or None.
    """

    def __init__(self, table: pa.Table, rows: Sequence[int | None]):
        self._table, self._rows = table, rows

    def fix(self, names: Iterable[tuple[str, str, str]]) -> "SourceMetadata":
        """Returns itself."""
        return self

    def align(self, entries: Sequence[IndexEntry]) -> tuple[pa.Table, int]:
        """Returns the columns with one row per image, and how many images have a row."""
        return _take(self._table, [self._rows[entry.number] for entry in entries])


def read_source(source: Source) -> SourceMetadata | None:
    """Reads the columns of a source besides images and captions; None if it has none."""
    if isinstance(source, TableSource) and source.image_column and source.rows is not None:
        rows = read_rows(source.path, source.image_column, source.delimiter, skip=True)
        table = rows.make_table([source.image_column, source.caption_column])
        grouped = defaultdict(list)
        for row, image in enumerate(rows.columns[source.image_column]):
            if image:  # a bad line may name none
                grouped[image].append(row)
        _tell_repeated(rows, table, grouped.values())
        numbers = {line: row for row, line in enumerate(rows.lines)}
        found = SourceMetadata(table, [numbers[line] for line in source.rows.tolist()])
    elif names := getattr(source, "other_columns", ()):
        values = list(map(list, zip(*_read_columns(source, names), strict=True)))
        rows = TableRows("", dict(zip(names, values, strict=True)), (), "row")
        table = rows.make_table([])
        found = SourceMetadata(table, range(int(source.shard_sizes.sum())))
    else:
        return None
    return found if table.num_columns else None


def _read_columns(source: Source, names: tuple[str, ...]) -> Iterable[list]:
    offsets = ShardOffsets(source.shard_sizes)
    for number in range(offsets.count):
        try:
            with boundary.ONE_EXAMPLE:
                yield source.read_columns(*offsets.locate_one(number), names)
        except BrokenExample:  # the image is told of when it is read
            yield [None] * len(names)


def _take(table: pa.Table, rows: Sequence[int | None]) -> tuple[pa.Table, int]:
    taken = table.take(pa.array(rows, pa.int64()))
    if not taken.num_columns:  # then it has no rows either
        taken = empty_metadata(len(rows))
    return taken, sum(row is not None for row in rows)


def _tell_repeated(rows: TableRows, table: pa.Table, groups: Iterable[list[int]]) -> None:
    """Warns of images with several rows if these say different things."""
    repeated = [group for group in groups if len(group) > 1]
    if not repeated:
        return
    values = [column.to_pylist() for column in table.columns]
    differ = []
    for first, *others in repeated:
        other = next((r for r in others if any(v[r] != v[first] for v in values)), None)
        differ += [] if other is None else [(first, other)]
    if differ:
        first, other = map(rows.tell, differ[0])
        told = rows.path, len(differ), first, other
        logging.warning(
            "%s: %d images have rows that differ, such as %s and %s; the first counts", *told
        )


def add_labels(metadata: pa.Table, labels: Sequence[str | None]) -> pa.Table:
    """Adds the column of classes, unless no image has one or the table has such a column."""
    if LABEL in metadata.column_names or not any(label is not None for label in labels):
        return metadata
    return metadata.append_column(LABEL, pa.array(labels, pa.string()))


def empty_metadata(count: int) -> pa.Table:
    """Returns a table of `count` rows without columns that filters could compare."""
    return pa.table({PLACEHOLDER: np.arange(count)})
