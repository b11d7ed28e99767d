"""Formats of what one version of big_align writes and another reads, each with a number.

A writer puts the number into a JSON object that it writes anyway, as `format`, and beside it, as
`big_align`, the version that wrote it. A number is raised by whatever a version with the old one
would misread; a field more, which old versions pass over, does not raise it. What can be made again
from its inputs, and is named by a digest of them, needs no number.
"""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from big_align.core.errors import UserError, put_in_a_line

NUMBER, VERSION = "format", "big_align"
READ = {
    "workdir": range(1, 2),
    "checkpoint": range(1, 2),
    "model folder": range(1, 2),
    "folder of embeddings or clusters": range(1, 2),
    "search index": range(2, 3),
    "search index in LanceDB": range(1, 2),
    "tag list": range(1, 2),
}
"""The numbers that this version reads, by kind; it writes the last of them."""


class OtherFormat(UserError):
    """What is read has a format that this version does not know."""


def stamp(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON object to write, with the number of its format and this version."""
    return {NUMBER: READ[kind][-1], VERSION: find_version()} | strip(content)


def strip(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without what `stamp` put in."""
    return {name: value for name, value in content.items() if name not in (NUMBER, VERSION)}


def check(kind: str, content: Mapping[str, Any], path: object) -> None:
    """Checks that this version reads an object; without a number its format is 1.

    Raises:
      OtherFormat: it does not; the message names the file, what wrote it, and what to do.
      UserError: the number is none.
    """
    number, read = content.get(NUMBER, 1), READ[kind]
    if type(number) is not int:
        shown = put_in_a_line(repr(number))
        raise UserError(f"{path} has the format {shown}: no number; it is not as it was written")
    if number in read:
        return
    by = content.get(VERSION)
    wrote = f", written by big_align {put_in_a_line(by)[:40]}" if isinstance(by, str) else ""
    newer = number > read[-1]
    limit = f"up to {read[-1]}" if newer else f"{read[0]} and newer ones"
    advice = "pip install --upgrade big-align" if newer else "make it again"
    raise OtherFormat(
        f"{path} has format {number} of a {kind}{wrote}; this version, {find_version()}, reads "
        f"{limit}: {advice}"
    )


def find_version() -> str:
    """Returns the version of the installed package."""
    try:
        return importlib.metadata.version("big_align")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
