"""Reads the rows of a whole table, of any kind, and gives its columns their types."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from big_align.core.errors import UserError, put_in_a_line
from big_align.data import files, listing
from big_align.data.column_values import is_plain, is_text, spell_halves, type_column, type_texts
from big_align.data.columns import list_names
from big_align.data.row_groups import open_table, read_group
from big_align.data.sources.object_rows import read_objects
from big_align.data.sources.parquet_source import NO_TABLE
from big_align.data.sources.rows_source import read_csv
from big_align.data.table_lines import BadLines

MOST_COLUMNS = 5000
FREE_CELLS, EMPTY_CELLS = 10_000_000, 20
"""Cells of objects in JSON, and empty ones for each that they have beyond these."""
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")

Column = Sequence[Any] | pa.ChunkedArray


class TableRows(NamedTuple):
    """The rows of a table, whose columns have None for an empty cell."""

    path: str
    columns: dict[str, Column]
    lines: Sequence[int]  # what each row is numbered in the table
    unit: str  # what these numbers count: lines, objects, or rows

    def tell(self, row: int) -> str:
        """Names a row in messages."""
        return f"{self.unit} {self.lines[row]}"

    def make_table(self, leave_out: Sequence[str | None]) -> pa.Table:
        """Returns the columns that have a name and plain values, each with its type."""
        kept = [name for name in self.columns if name and name not in leave_out]
        made = {spell_halves(name): _type(self.columns[name]) for name in kept}
        return pa.table({name: values for name, values in made.items() if values is not None})


def read_rows(
    path: str, key: str | None = None, delimiter: str | None = None, skip: bool | None = None
) -> TableRows:
    """Reads a table: CSV, TSV, JSON lines, a JSON list of objects, or Parquet, also globs of it.

    A column that it is known to have helps to find the delimiter. Bad lines end the reading unless
    they are to be skipped.
    """
    if path.lower().endswith(".parquet"):
        return _read_parquet(path)
    if path.lower().endswith((".json", ".jsonl")):
        bad = BadLines(path, skip, "object" if path.lower().endswith(".json") else "line")
        lines, objects = list(zip(*read_objects(bad), strict=True)) or ((), ())
        names = dict.fromkeys(name for each in objects for name in each)
        _check_names(path, list(names))
        _check_cells(path, objects, len(names))
        columns = {name: [each.get(name) for each in objects] for name in names}
        return TableRows(path, columns, lines, bad.unit)
    _, rows = read_csv(BadLines(path, skip), delimiter, (key,))
    header = next(rows)[1]
    _check_names(path, header)
    lines, cells = list(zip(*rows, strict=True)) or ((), ())
    columns = {
        name: [row[place].strip() or None for row in cells] for place, name in enumerate(header)
    }
    return TableRows(path, columns, lines, "line")


def _read_parquet(path: str) -> TableRows:
    try:
        tables = []
        for name in listing.expand_paths(path):
            with files.files_of(name).open(name) as file:
                table = open_table(file)
                schema = table.schema_arrow
                _check_names(name, schema.names)
                plain = [field.name for field in schema if is_plain(field.type)]
                tables += [read_group(table, n, plain) for n in range(table.num_row_groups)]
                tables.append(schema.empty_table().select(plain))
        table = pa.concat_tables(tables, promote_options="permissive")
    except UserError:
        raise
    except NO_TABLE as error:
        raise UserError(f"{path} cannot be read: {put_in_a_line(str(error))}") from error
    columns = dict(zip(table.column_names, table.columns, strict=True))
    return TableRows(path, columns, range(table.num_rows), "row")


def _check_names(path: str, names: Sequence[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise UserError(
            f"{path} has {len(names)} columns, from {names[0]!a:.50} to {names[-1]!a:.50}; at most "
            f"{MOST_COLUMNS} are read: leave out those that no filter asks for"
        )
    if twice := [name for name, count in Counter(filter(None, names)).items() if count > 1]:
        raise UserError(
            f"{path} has the column {twice[0]!r} twice; it has {list_names(names)}: rename or "
            "remove one"
        )


def _check_cells(path: str, objects: Sequence[dict], columns: int) -> None:
    """Refuses objects that have so little in common that nearly all cells are empty."""
    there, cells = sum(map(len, objects)), len(objects) * columns
    if cells > FREE_CELLS + EMPTY_CELLS * there:
        raise UserError(
            f"{path} has {len(objects)} objects with {columns} names of fields in all, and {there} "
            f"values; a table has the same fields in its rows"
        )


def _type(values: Column) -> pa.Array | pa.ChunkedArray | None:
    """Returns a column so that it equals itself after it is written and read; None if not plain.

    An update is then no change. Timestamps are in microseconds, as Python has them, times of day in
    milliseconds or less, and NaN is a missing value.
    """
    if not isinstance(values, pa.ChunkedArray):
        values = type_column(values)
    elif pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values is None or not is_plain(values.type):
        return None
    if isinstance(values, pa.ChunkedArray) and is_text(values.type):
        values = type_texts(values.cast(pa.string()).combine_chunks())
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz), safe=False)
    elif kind == pa.time32("s"):
        values = values.cast(pa.time32("ms"))
    elif pa.types.is_date64(kind):
        values = values.cast(pa.date32())
    elif pa.types.is_float16(kind):
        values = values.cast(pa.float32())
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    return values
