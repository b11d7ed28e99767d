"""Rows of the files of judgments: JSON, lines of JSON, and columns, each with its location."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.core.errors import UserError, put_in_a_line
from big_align.data.files import read_text
from big_align.data.json_texts import NotJson, parse_json, read_json


class JudgedRow(NamedTuple):
    """A row with its location for error messages, as in "add_att.json, 17", and values by field."""

    where: str
    values: Mapping[str, Any]

    def text(self, field: str) -> str:
        """Returns a text with each run of white space replaced by a single space."""
        value = self.values.get(field)
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{self.where}: {field} is {_show(value)}, not a text")
        return " ".join(value.split())

    def number(self, field: str) -> float:
        """Returns a finite number."""
        value = self.values.get(field)
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = math.nan
        if isinstance(value, bool) or not math.isfinite(found):
            raise UserError(f"{self.where}: {field} is {_show(value)}, not a number")
        return found


def read_rows(path: str) -> list[JudgedRow]:
    """Reads rows from a JSON file with a list of objects, or an object of objects."""
    found = read_json(path)
    listed = found.items() if isinstance(found, dict) else enumerate(found or [])
    if not isinstance(found, dict | list) or not found:
        raise UserError(f"{path} is JSON, and no list of rows")
    return [_check_row(value, f"{path}, {name}") for name, value in listed]


def read_line_rows(path: str) -> list[JudgedRow]:
    """Reads lines with one JSON object each."""
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                rows.append(_check_row(parse_json(line), where))
            except NotJson as error:
                raise UserError(f"{where} {error}") from error
    if not rows:
        raise UserError(f"{path} has no line")
    return rows


def read_columns(path: str, columns: Sequence[str], separator: str) -> Iterator[JudgedRow]:
    """Reads a table whose first line names its columns, which begin with those given."""
    lines = csv.reader(io.StringIO(read_text(path)), delimiter=separator, quoting=csv.QUOTE_NONE)
    head = next(lines, [])
    if head[: len(columns)] != list(columns):
        raise UserError(
            f"{path} must begin with the columns {', '.join(columns)}; it has "
            f"{put_in_a_line(', '.join(head))[:120]}"
        )
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        if len(line) != len(head):
            raise UserError(f"{path}, line {number} has {len(line)} columns, not {len(head)}")
        yield JudgedRow(f"{path}, line {number}", dict(zip(head, line, strict=True)))


def _check_row(value: Any, where: str) -> JudgedRow:
    if not isinstance(value, dict):
        raise UserError(f"{where} is {_show(value)}, not an object with fields")
    return JudgedRow(where, value)


def _show(value: Any) -> str:
    return "missing" if value is None else put_in_a_line(repr(value))[:40]
