"""The one parser of JSON that others wrote, within bounds on what it makes of a text."""

import collections
import json
from collections.abc import Iterable, Mapping
from typing import Any

from big_align.core.errors import UserError, put_in_a_line
from big_align.data import files

DEEPEST = 100
"""Lists and objects inside of each other; what goes through them calls itself for each."""
MOST_VALUES, BYTES_OF_A_VALUE = 1_000_000, 4
"""A text may have this many values, and one more per this many of its characters.

A value of two characters takes more than a hundred bytes in memory.
"""


class NotJson(ValueError):
    """A text that is not JSON that can be used; the message begins with "is not JSON"."""


def parse_json(text: str, bytes_of_a_value: int = BYTES_OF_A_VALUE) -> Any:
    """Parses a JSON text without a byte-order mark.

    It raises NotJson if an object has a name twice, if it is nested more than `DEEPEST` deep, or if
    it has more than a million values, and one for each `bytes_of_a_value` characters.
    """
    opened = text.count("[") + text.count("{")
    values = opened + text.count(",")
    if values > MOST_VALUES + len(text) // bytes_of_a_value:
        raise _unusable(f"it has {values} values in {len(text)} bytes, more than it can need")
    try:
        parsed = json.loads(text, object_pairs_hook=_name_once)
    except RecursionError as error:
        raise _unusable(f"it is nested more than {DEEPEST} deep") from error
    except NotJson:
        raise
    except ValueError as error:  # also for integers with thousands of digits
        raise NotJson(f"is not JSON: {put_in_a_line(str(error))}") from error
    if opened > DEEPEST and _is_deep(parsed):
        raise _unusable(f"it is nested more than {DEEPEST} deep")
    return parsed


def read_json(path: str, what: str = "") -> Any:
    """Returns the value of a JSON file, local or remote; the errors are those of `read_text`."""
    text = files.read_text(path, what)
    try:
        return parse_json(text)
    except NotJson as error:
        raise UserError(f"{what}{path} {error}") from error


def format_json(fields: Mapping[str, Any], lists: Mapping[str, Iterable[Any]]) -> str:
    """Returns an object as JSON; its lists, which come last, have a line for each entry."""
    made = [f' "{name}": {json.dumps(each, ensure_ascii=False)}' for name, each in fields.items()]
    for name, entries in lists.items():
        lines = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in entries)
        made.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(made) + "\n}\n"


def find_half(text: str) -> str:
    """Returns where ("the text has ...") a text has half of a surrogate pair, "" for nowhere."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"half a character ({text[error.start]!a} at {error.start})"
    return ""


def _unusable(why: str) -> NotJson:
    return NotJson(f"is not JSON that can be used: {why}")


def _name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        raise _unusable(f"it has {counts.most_common(1)[0][0][:100]!r} twice in an object")
    return made


def _is_deep(value: Any) -> bool:
    """Returns whether a value is too deep, without going deep itself."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        below = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for values in below for inner in values]
    return bool(level)
