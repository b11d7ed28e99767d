"""Columns of metadata in the tables of an index in LanceDB.

The engine has whole numbers, doubles, texts and booleans; dates and times are whole numbers, of the
type's unit. Names are counted, since those of users can be anything.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from big_align.use.search.stores.filters import Condition, TableColumns, read_conditions
from big_align.use.search.stores.on_lance.lance_tables import LanceTables, spell

TEXTS_SHOWN = 1000  # rows that are looked at for a message
STORED = re.compile(r"m[0-9]+")
"""Names of columns of metadata in the engine."""
Stored = dict[str, pa.Array | pa.ChunkedArray]
"""Columns of metadata as the engine has them."""


class MetadataColumns:
    """Columns of metadata: their types, and under which names and types the engine has them."""

    def __init__(self, noted: Mapping[str, Sequence[str]], table: Any):
        self._stored = {name: stored for name, (stored, _) in noted.items()}
        self._table = table
        self.types = {name: read_type(kind) for name, (_, kind) in noted.items()}

    def __getitem__(self, name: str) -> str:
        return self._stored[name]

    def show_texts(self, column: str) -> list[str | None]:
        """Returns some different texts of a column."""
        found = self._table.search().select([self[column]]).limit(TEXTS_SHOWN).to_arrow()
        return found[self[column]].unique().to_pylist()

    def write_where(self, filters: Sequence[str]) -> str | None:
        """Returns a condition of SQL that the rows meet that meet all filters; None for none."""
        conditions = read_conditions(self, filters) if filters else []
        return " AND ".join(map(self._write, conditions)) or None

    def _write(self, condition: Condition) -> str:
        stored, value = self[condition.column], condition.value
        operator = {"==": "=", "!=": "<>"}.get(condition.operator, condition.operator)
        if condition.as_doubles:
            as_double = f"CAST({stored} AS DOUBLE)"
            told = f"{as_double} {operator} {spell(value.as_py())}"
            return f"({told} AND NOT isnan({as_double}))"
        if pa.types.is_temporal(value.type):
            value = _count(value)
        return f"{stored} {operator} {spell(value.as_py())}"

    def decode(self, table: pa.Table) -> list[dict[str, Any]]:
        """Returns the metadata of rows of the engine."""
        columns = {
            name: _decode(table[self[name]].combine_chunks(), kind).to_pylist()
            for name, kind in self.types.items()
        }
        return [
            {name: column[row] for name, column in columns.items()} for row in range(len(table))
        ]


class WrittenColumns:
    """Columns that a run brings, in place of those that there are."""

    def __init__(self, all_tables: LanceTables, info: dict[str, Any], tables: Collection[Any]):
        self._all, self._info, self._tables = all_tables, info, tables
        self._seen: dict[str, None] = {}  # in their order

    def drop_unnoted(self) -> None:
        """Drops what a stopped run has made and not noted."""
        noted = {stored for stored, _ in self._info["columns"].values()}
        for table in self._tables:
            others = [name for name in table.schema.names if STORED.fullmatch(name)]
            if left := sorted({*others} - noted):
                table.drop_columns(left)

    def take(self, metadata: pa.Table) -> Stored:
        """Returns the metadata as the engine has it, after making columns that are new."""
        noted = self._info["columns"]
        for name, kind in TableColumns(metadata).types.items():
            if name in noted and noted[name][1] != write_type(kind):
                self._drop([name])
            if name not in noted:
                stored = f"m{self._info['stored']}"
                self._info["stored"] += 1
                for table in self._tables:
                    table.add_columns(pa.field(stored, stored_type(kind)))
                noted[name] = [stored, write_type(kind)]
                self._all.write_info(self._info)
            self._seen[name] = None
        columns = {stored: pa.nulls(len(metadata)) for stored, _ in noted.values()}
        there = self._seen.keys() & metadata.column_names
        return columns | {noted[name][0]: encode(metadata[name]) for name in there}

    def list_unseen(self) -> list[str]:
        """Returns the columns that the run has not brought."""
        return [name for name in self._info["columns"] if name not in self._seen]

    def end(self) -> None:
        """Drops them, and notes the others in the order of the run."""
        self._drop(self.list_unseen())
        self._info["columns"] = {name: self._info["columns"][name] for name in self._seen}

    def _drop(self, names: Sequence[str]) -> None:
        stored = [self._info["columns"].pop(name)[0] for name in names]
        if stored:
            self._all.write_info(self._info)
            for table in self._tables:
                table.drop_columns([each for each in stored if each in table.schema.names])


def write_type(kind: pa.DataType) -> str:
    """Returns the name of a type, which `read_type` reads."""
    return pa.schema([("", kind)]).serialize().to_pybytes().hex()


def read_type(text: str) -> pa.DataType:
    """Reads a type."""
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text))).field(0).type


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type as which the engine has a column."""
    if pa.types.is_boolean(kind):
        return kind
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else pa.string()


def encode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as the engine has it."""
    return (
        _count(column)
        if pa.types.is_temporal(column.type)
        else column.cast(stored_type(column.type))
    )


def _count(values: Any) -> Any:
    """Returns dates and times as whole numbers of their unit."""
    return values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64()).cast(pa.int64())


def _decode(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind) and kind.bit_width == 32:
        values = values.cast(pa.int32())
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    return values.cast(kind)
