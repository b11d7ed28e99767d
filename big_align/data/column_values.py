"""Decides what the values of a column are: numbers, dates and times, or texts; and what a key is.

A text may look like a number and be none: `007`, `7` and `1e3` are three ids. So a column of texts
holds numbers only if nothing is lost by that.
"""

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WHOLE = r"^(0|-?[1-9][0-9]*)$"
NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-][0-9]+)?|inf)$"
"""Numbers as programs write them: no leading zeros, and an exponent has a sign."""
DIGITS = 15
MISSING = pa.array(["nan", "NaN", "NAN"])
BOOLEANS = ({"true", "false"}, {"True", "False"}, {"TRUE", "FALSE"})
DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
MOMENT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{CLOCK}(\.[0-9]{{1,6}})?"
ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"


def type_column(values: Sequence[Any]) -> pa.Array | None:
    """Returns a column as numbers, booleans, dates, times or texts; None for lists and objects.

    Texts become something else only if all of them do and none is lost: they are written as such
    values are, exact, and two different ones stay different. Values of several kinds become texts.
    None is a missing value.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds & {list, dict}:
        return None
    if kinds - {str}:
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            pass  # they are of several kinds, too large, or have half of a surrogate pair
    texts = pa.array([None if value is None else _write(value) for value in values], pa.string())
    return texts if kinds - {str} else type_texts(texts)


def type_texts(texts: pa.Array) -> pa.Array:
    """Returns texts as what they are without loss, which may be texts; see `type_column`."""
    readers: Sequence[Callable[[pa.Array], pa.Array | None]]
    readers = (_read_booleans, _read_numbers, _read_dates) if texts.null_count < len(texts) else ()
    for read in readers:
        try:
            found = read(texts)
        except (pa.ArrowException, ValueError):  # no such day or hour, or too large
            continue
        if found is not None:
            return found
    return texts


def is_plain(kind: pa.DataType) -> bool:
    """Returns whether values are numbers, texts, dates or booleans, which can be compared."""
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or is_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    """Returns whether values are texts, in any of Arrow's layouts."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in tests)


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether values are bytes, in any of Arrow's layouts."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def write_key(value: Any) -> str:
    """Returns a key as the name of a file or a text has it, "" for a missing one.

    Tools that have no whole numbers beside missing values make 7.0 of 7, and those that have no
    days make midnights of them.
    """
    if isinstance(value, float | np.floating):
        if np.isnan(value):
            return ""
        value = int(value) if float(value).is_integer() else value
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value).strip()


def spell_halves(text: str) -> str:
    """Spells halves of surrogate pairs, which JSON can hold and UTF-8 cannot, as in `\\ud83d`."""
    return text.encode("utf-8", "backslashreplace").decode()


def _write(value: Any) -> str:
    return spell_halves(str(value).lower() if isinstance(value, bool) else str(value))


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _read_booleans(texts: pa.Array) -> pa.Array | None:
    spelled = texts.unique().drop_null()
    if len(spelled) > 2 or not any(pair.issuperset(spelled.to_pylist()) for pair in BOOLEANS):
        return None
    return pc.equal(pc.utf8_lower(texts), "true")


def _read_numbers(texts: pa.Array) -> pa.Array | None:
    texts = pc.if_else(pc.is_in(texts, MISSING), pa.scalar(None, pa.string()), texts)
    if texts.null_count == len(texts) or not _all_match(texts, NUMBER):
        return None
    different = texts.unique().drop_null()
    whole = _all_match(texts, WHOLE)
    numbers = different.cast(pa.int64() if whole else pa.float64())
    if pc.count_distinct(numbers).as_py() < len(different):  # 3 and 3.0
        return None
    if not whole and not _are_exact(different.to_pylist(), numbers.to_pylist()):
        return None
    return texts.cast(numbers.type)


def _are_exact(texts: Sequence[str], numbers: Sequence[float]) -> bool:
    """Returns whether decimals can be written again from their numbers.

    Zeros at the end, as in the version 1.10, are known if all have equally many decimals.
    """
    decimals = [text.lower().partition("e")[0].partition(".")[2] for text in texts]
    padded = any(part.endswith("0") and part != "0" for part in decimals)
    if padded and len(set(map(len, decimals))) > 1:
        return False
    return all(
        decimal.Decimal(text) == decimal.Decimal(repr(number))
        for text, number in zip(texts, numbers, strict=True)
        if len(text) > DIGITS or "e" in text.lower()  # a double holds all that are shorter
    )


def _read_dates(texts: pa.Array) -> pa.Array | None:
    if _all_match(texts, DAY):
        return texts.cast(pa.date32())
    if _all_match(texts, f"{MOMENT}$"):
        return texts.cast(pa.timestamp("us"))
    if _all_match(texts, f"{MOMENT}{ZONE}$"):
        return texts.cast(pa.timestamp("us", "UTC"))
    if _all_match(texts, f"^{CLOCK}$"):
        times = (text and datetime.time.fromisoformat(text) for text in texts.to_pylist())
        return pa.array(times, pa.time32("ms"))
    return None
