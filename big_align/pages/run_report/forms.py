"""The form that a workdir's JSON must have for a page to be made from it."""

import inspect
import itertools
import re
import reprlib
import shlex
from collections.abc import Mapping
from typing import Any

from big_align.core.errors import UserError, put_in_a_line
from big_align.pages.charts import LARGEST
from big_align.training.logs.line_files import number_of


def _is_pair(value: Any) -> bool:
    """Returns whether a value is a list of two."""
    return isinstance(value, list) and len(value) == 2


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number that can be drawn."""
    number = None if isinstance(value, str) else number_of(value)
    return number is not None and abs(number) <= LARGEST


def _is_time(value: Any) -> bool:
    """Returns whether a value is a time, in seconds, that calendars have."""
    return _is_number(value) and abs(value) < 2**36


def _is_command(value: Any) -> bool:
    """Returns whether a value is a command line that a shell would split into words."""
    try:
        return isinstance(value, str) and bool(shlex.split(value))
    except ValueError:  # a quote without an end
        return False


def _is_picture(value: Any) -> bool:
    """Returns whether a value is an image as runs write it, of which nothing must be fetched."""
    return isinstance(value, str) and bool(PICTURE.match(value))


def _is_confusion(value: Any) -> bool:
    """Returns whether class counts have one row per class, and one more column for others."""
    if not (isinstance(value, dict) and fits(value, LABELED_COUNTS)):
        return False
    size, counts = len(value["names"]), value["counts"]
    whole = len(counts) == size and all(len(row) == size + 1 for row in counts)
    return whole and all(0 <= count < 2**53 for row in counts for count in row)


def _is_distributions(value: Any) -> bool:
    """Returns whether distributions have a share of each bin, of each group at each step."""
    if not (isinstance(value, dict) and fits(value, SHARES)):
        return False
    steps, groups, edges = value["shares"], len(value["groups"]), value["edges"]
    whole = all(
        len(step) == groups and all(len(row) == len(edges) - 1 for row in step) for step in steps
    )
    ascending = len(edges) > 1 and all(a < b for a, b in itertools.pairwise(edges))
    return whole and ascending and len(steps) == len(value["steps"]) > 0


PICTURE = re.compile(r"data:image/[a-z]+;base64,[A-Za-z0-9+/=]*\Z")
ITEM = {"image": (type(None), _is_picture), "text": str, "right": bool | None}
EXAMPLES = {"title": str, "note": str, "rows": [{"query": ITEM, "found": [ITEM]}]}
LABELED_COUNTS = {"title": str, "note": str, "names": [str], "counts": [[int]]}
SHARES = {
    **{"title": str, "note": str, "groups": [str], "edges": [_is_number]},
    **{"shares": [[[_is_number]]], "steps": [int]},
}
EXHIBITS = {"*": [(EXAMPLES, _is_confusion, _is_distributions)]}
PICTURES = {"step": int, "exhibits": EXHIBITS, "data?": EXHIBITS}
NODE = {"source?": {}, "*": Any}
CONFIG = {
    "total_steps?": int,
    "batch_size?": int,
    "data?": {"mixture?": {"*": NODE}, **NODE},
    "evaluators?": {"*": NODE},
    "*": Any,
}
GOODPUT = {"seconds?": {"*": _is_number}, "chip_seconds?": _is_number, "*": Any}
START = {
    "time?": _is_time,
    "step?": int,
    "parameters?": {"*": int},
    "formats?": {"*": str},
    "examples?": {"*": int | None},
    "versions?": {"*": str},
    "inputs?": {"image?": [int], "text?": int},
    "devices?": {"count?": int, "processes?": int, "*": Any},
    "command?": _is_command,
    "config?": str,
    "changes?": {"*": _is_pair},
    "*": Any,
}


def check_form(value: Any, form: Any, where: str) -> None:
    """Checks a JSON value; the message of a UserError begins with the file and the place in it.

    A form is a type, or a predicate; `[form]` is a list of values with this form, and a tuple has
    several forms, one of which must fit; a dictionary has forms by field, with `*` for fields that
    are not named; a field whose name ends in "?" may be missing or null.
    """
    if form is Any:
        return
    if isinstance(form, dict):
        _expect(isinstance(value, Mapping), where, "an object", value)
        for field, inner in form.items():
            name = field.removesuffix("?")
            if field == name != "*":
                _expect(name in value, where, f"an object with {name}", value)
            if value.get(name) is not None or (field == name and name in value):
                check_form(value[name], inner, f"{where}: {name}")
        named = {field.removesuffix("?") for field in form}
        for name in value.keys() - named:
            check_form(value[name], form.get("*", Any), f"{where}: {name}")
    elif isinstance(form, list):
        _expect(isinstance(value, list), where, "a list", value)
        if isinstance(form[0], type) and all(isinstance(each, form[0]) for each in value):
            return  # a message of a place takes longer than the place
        for number, each in enumerate(value):
            check_form(each, form[0], f"{where}: {number}")
    elif isinstance(form, tuple):
        _expect(any(fits(value, each) for each in form), where, "as it was written", value)
    elif inspect.isfunction(form):
        _expect(form(value), where, "as it was written", value)
    else:
        name = getattr(form, "__name__", str(form))
        _expect(isinstance(value, form), where, f"of type {name}", value)


def fits(value: Any, form: Any) -> bool:
    """Returns whether a value has a form."""
    try:
        check_form(value, form, "")
    except UserError:
        return False
    return True


def _expect(right: bool, where: str, what: str, value: Any) -> None:
    if not right:
        shown = put_in_a_line(reprlib.repr(value))  # bounded, however large the value is
        raise UserError(f"{where} should be {what} and is {shown[:60]}; mend the file or remove it")
