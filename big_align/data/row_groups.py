"""Row groups of Parquet files, read in any order from several threads; the latest are kept."""

import collections
import concurrent.futures
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging

from big_align.core.errors import UserError
from big_align.data import examples, files

UNPACKED_MIN = 2**28  # bytes that any row group may unpack to
UNPACKED_MAX = 100  # times what it takes in the file: encoded images hardly shrink, zeros do
LEVEL = 8  # the fewest bytes that a value takes, even a null
BATCH = 64  # rows that are decoded before their bytes are counted


class Place(NamedTuple):
    """A row group: the number of its file, and its own in the file."""

    file: int
    group: int


class RowGroups:
    """Columns of row groups. Threads that ask for one at the same time share one read.

    Decoded row groups of up to `budget` bytes are kept; one that is larger is kept alone.
    """

    def __init__(self, paths: list[str], budget: int):
        self._paths, self._budget = paths, budget
        self._kept: collections.OrderedDict[tuple, concurrent.futures.Future] = (
            collections.OrderedDict()
        )
        self._sizes: dict[tuple, int] = {}
        self._refused: dict[tuple, str] = {}  # not decoded again for each of their rows
        self._columns: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._told = False

    def __reduce__(self) -> tuple[type, tuple[list[str], int]]:
        return type(self), (self._paths, self._budget)  # each process has its own cache

    def read(self, place: Place, names: tuple[str, ...], row: int) -> list[Any]:
        """Returns values in a row, also of fields such as `image.bytes`; raises BrokenExample."""
        try:
            table = self._get((place, names))
            return [_value(table, name, row) for name in names]
        except UserError:
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise examples.BrokenExample(
                f"row group {place.group} of {self._paths[place.file]} cannot be read: {error}"
            ) from error

    def has_column(self, place: Place, name: str) -> bool:
        """Returns whether the file of a row group has a column, or one with such a field."""
        path = self._paths[place.file]
        try:
            if path not in self._columns:
                with files.files_of(path).open(path) as file:
                    schema = open_table(file).schema_arrow
                self._columns[path] = frozenset([*schema.names, *list_fields(schema)])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise examples.BrokenExample(f"{path} cannot be read: {error}") from error
        return name in self._columns[path]

    def _get(self, key: tuple[Place, tuple[str, ...]]) -> pa.Table:
        if reason := self._refused.get(key):
            raise ValueError(reason)
        with self._lock:
            future = self._kept.get(key)
            first = future is None
            if first:
                future = self._kept[key] = concurrent.futures.Future()
            self._kept.move_to_end(key)
        if first:
            try:
                table = self._load(*key)
            except BaseException as error:
                with self._lock:
                    del self._kept[key]
                    # errors of a disk or network may pass
                    if isinstance(error, ValueError) and not isinstance(error, OSError):
                        self._refused[key] = str(error)
                future.set_exception(error)
            else:
                future.set_result(table)
                self._keep(key, table.nbytes)
        return future.result()

    def _load(self, place: Place, names: tuple[str, ...]) -> pa.Table:
        path = self._paths[place.file]
        with files.files_of(path).open(path) as file:
            return read_group(open_table(file), place.group, names)

    def _keep(self, key: tuple, size: int) -> None:
        """Drops those not used for longest until the rest is within the budget."""
        with self._lock:
            self._sizes[key] = size
            while sum(self._sizes.values()) > self._budget and len(self._sizes) > 1:
                oldest = next(other for other in self._kept if other in self._sizes)
                if oldest == key:  # all others are still being read
                    break
                del self._kept[oldest], self._sizes[oldest]
            told, self._told = self._told, self._told or size > self._budget
        if size > self._budget and not told:
            logging.warning(
                "a row group of %s takes %d MB, more than cache_megabytes: it is decoded again for "
                "every image. Write the file with fewer rows in a group, such as 100",
                self._paths[key[0].file],
                size // 2**20,
            )


def list_fields(schema: pa.Schema) -> list[str]:
    """Lists the fields of structs, such as `captions.en`."""
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    return [f"{struct.name}.{field.name}" for struct in structs for field in struct.type]


def open_table(file: Any) -> pq.ParquetFile:
    """Opens a Parquet file; checksums of pages, if any, are verified as the pages are read."""
    return pq.ParquetFile(file, page_checksum_verification=True)


def read_group(table: pq.ParquetFile, group: int, names: Sequence[str]) -> pa.Table:
    """Reads columns of a row group, or fields of structs such as `image.bytes`.

    It raises ValueError if there is no such column, or if they unpack to far more than they take in
    the file, which images never do; else what pyarrow raises.
    """
    known = table.schema_arrow.names
    if unknown := [n for n in names if n not in known and n.partition(".")[0] not in known]:
        raise ValueError(f"it has no column {unknown[0]!r}; it has {', '.join(map(repr, known))}")
    described = table.metadata.row_group(group)
    listed = map(described.column, range(described.num_columns))
    parts = [c for c in listed if any(f"{c.path_in_schema}.".startswith(f"{n}.") for n in names)]
    packed = sum(part.total_compressed_size for part in parts)
    most = max(UNPACKED_MIN, UNPACKED_MAX * packed)
    size = sum(max(part.total_uncompressed_size, LEVEL * part.num_values) for part in parts)
    batches = []
    if size <= most:
        size = 0
        for batch in table.iter_batches(BATCH, [group], list(names), use_threads=False):
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                break
    if size > most:
        raise ValueError(f"its {packed} bytes unpack to {size} or more; at most {most} are read")
    schema = batches[0].schema if batches else table.schema_arrow
    return pa.Table.from_batches(batches, schema)


def _value(table: pa.Table, name: str, row: int) -> Any:
    """Returns a value as Python has it; `captions.en` is a field of the struct `captions`."""
    if name in table.column_names:
        return table.column(name)[row].as_py()
    top, _, field = name.partition(".")
    struct = table.column(top)[row].as_py()
    return struct[field] if struct is not None else None
