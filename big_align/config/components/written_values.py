"""Values as they are written on a command line."""

import ast
import contextlib
import re
from collections.abc import Collection, Sequence
from typing import Any

SEVERAL = {tuple, list, Sequence}
"""Types of fields that take several values, as in --config.data.source.path="['a', 'b']"."""
BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def read_value(text: str, kinds: Collection[type]) -> Any:
    """Returns the value that a text on a command line stands for, in a field of some types.

    A field of texts takes the text as it is, even if that is a number: `1` can be the name of a
    column. Anything else is written as in Python. A ValueError says that it is of none of the
    types.
    """
    several = SEVERAL.intersection(kinds) and text.strip().startswith(("(", "["))
    if str in kinds and not several:
        return text
    for kind in kinds:
        if kind is not str:
            with contextlib.suppress(ValueError):
                return _read_one(text, kind)
    raise ValueError(f"{text!r} is of none of the types {kinds}")


def _read_one(text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in BOOLS:
            raise ValueError(f"{text!r} is neither true nor false")
        return BOOLS[text.lower()]
    if kind in (int, float):
        return kind(text)
    if kind in SEVERAL and re.fullmatch(r"[A-Za-z_]\w*", text):
        return (text,)  # one text without quotes
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error
    if kind not in SEVERAL or (kind is not tuple and isinstance(value, list)):
        return value
    return tuple(value) if isinstance(value, tuple | list) else (value,)
