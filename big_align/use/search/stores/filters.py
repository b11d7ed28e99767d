"""Conditions on the columns of the metadata: `year>=2020`, `place=Berlin`."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool

from big_align.core.errors import UserError, suggest
from big_align.data.column_values import NUMBER, WHOLE, spell_halves
from big_align.data.columns import list_names
from big_align.use.search.stores.store import PLACEHOLDER

COMPARE = {
    "=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal,
    ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
EQUAL = ("=", "==", "!=")
BREAK = re.compile(r",(?=\s*[^,=<>!\s][^,=<>!]*(?:!=|[=<>]))")
"""A comma between conditions: what follows it is a name and a comparison."""
PATTERN = re.compile(r"\s*([^=<>!]*[^=<>!\s])\s*(!=|<=|>=|==|=|<|>)\s*(.*?)\s*")


def split_filters(text: str) -> list[str]:
    """Splits a line into conditions; `place=Zürich, CH, year>2000` are two of them."""
    parts = (part.strip(", ") for part in BREAK.split(text))
    return [part for part in parts if part]


class Condition(NamedTuple):
    """A comparison of a column with a value, which has the type that both are compared as."""

    column: str
    operator: str
    value: pa.Scalar
    kind: pa.DataType  # of the column

    @property
    def as_doubles(self) -> bool:
        """Whether the numbers of the column are compared as doubles."""
        return pa.types.is_floating(self.value.type)


@runtime_checkable
class Columns(Protocol):
    """The columns that conditions are about."""

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The type of each."""

    def show_texts(self, column: str) -> list[str | None]:
        """Returns some different texts of a column, for a message."""


class TableColumns:
    """Those of a table."""

    def __init__(self, table: pa.Table):
        self._table = table
        self.types = {field.name: field.type for field in table.schema if field.name != PLACEHOLDER}

    def show_texts(self, column: str) -> list[str | None]:
        """Returns the different texts of a column."""
        return self._table[column].unique().to_pylist()


def apply_filters(metadata: pa.Table, texts: Sequence[str]) -> Bool[np.ndarray, "n"] | None:
    """Returns which rows meet all conditions, None without any; a missing value meets none."""
    if not texts:
        return None
    mask = np.ones(len(metadata), bool)
    for condition in read_conditions(TableColumns(metadata), texts):
        mask &= _apply(metadata[condition.column], condition)
    return mask


def read_conditions(columns: Columns, texts: Sequence[str]) -> list[Condition]:
    """Reads conditions on columns.

    Raises:
      UserError: one does not read as a condition, has an unknown column, or a value that is none
        of the column's type.
    """
    found = []
    for text in texts:
        match = PATTERN.fullmatch(spell_halves(text))
        if not match:
            raise UserError(
                f"the filter {text!r} does not read as COLUMN=VALUE; =, !=, <, <=, > and >= compare"
            )
        found.append(_read_condition(columns, *match.groups()))
    return found


def _read_condition(columns: Columns, column: str, operator: str, written: str) -> Condition:
    if column not in columns.types:
        known = list(columns.types)
        there = f"it has {list_names(known)}{suggest(column, known)}" if known else "it has none"
        raise UserError(
            f"the index has no column {column!r} of metadata; {there}. --metadata=FILE of "
            "big_align.tools.index adds columns"
        )
    kind = columns.types[column]
    if operator not in EQUAL and pa.types.is_string(kind) and re.search(NUMBER, written):
        raise UserError(
            f"the filter {column}{operator}{written}: the column holds texts, such as "
            f"{_find_strange(columns.show_texts(column))!r}, which have no order of numbers; = and "
            "!= compare them"
        )
    try:
        value = pa.scalar(_read_bool(written) if pa.types.is_boolean(kind) else written)
        if (whole := _read_whole(written, kind)) is not None:
            value = whole
        elif pa.types.is_floating(kind):  # 4.7 as the column would hold it
            number = np.dtype(f"f{kind.bit_width // 8}").type(value.cast(pa.float64()).as_py())
            value = pa.scalar(float(number))
        elif pa.types.is_integer(kind):
            value = value.cast(pa.float64())
        else:
            value = _read_other(written, kind)
    except (pa.ArrowException, ValueError) as error:
        raise UserError(
            f"the filter {column}{operator}{written}: the column holds {kind}, and "
            f"{written!r} does not read as that"
        ) from error
    return Condition(column, operator, value, kind)


def _apply(values: pa.ChunkedArray, condition: Condition) -> Bool[np.ndarray, "n"]:
    if condition.as_doubles:
        values = values.cast(pa.float64(), safe=False)
    found = COMPARE[condition.operator](values, condition.value)
    if pa.types.is_floating(values.type):  # NaN is shown as a missing value, and is one
        found = pc.and_(found, pc.invert(pc.is_nan(values)))
    return np.asarray(pc.fill_null(found, False).to_numpy(), bool)


def _find_strange(texts: Sequence[str | None]) -> str:
    """Returns a text that is no number; where all look like some, one that would be lost as one."""
    there = [text for text in texts if text is not None]
    found = [text for pattern in (NUMBER, WHOLE) for text in there if not re.search(pattern, text)]
    return next(iter(found), max(there, key=len, default=""))


def _read_whole(text: str, kind: pa.DataType) -> pa.Scalar | None:
    """Reads a whole number for a column of them: doubles do not tell large ones apart."""
    if not pa.types.is_integer(kind) or not re.fullmatch(r"[+-]?\d+", text):
        return None
    try:
        return pa.scalar(int(text), kind)
    except (pa.ArrowException, OverflowError):  # beyond all that the column can hold
        return None


def _read_other(text: str, kind: pa.DataType) -> pa.Scalar:
    """Reads a value that is no number; a time without a zone is one of the column's zone."""
    if pa.types.is_time(kind):
        return pa.scalar(datetime.time.fromisoformat(text), kind)
    value = pa.scalar(text)
    if not (pa.types.is_timestamp(kind) and kind.tz):
        return value.cast(kind)
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        return pc.assume_timezone(value.cast(pa.timestamp(kind.unit)), kind.tz)


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"
