"""What the docstrings of components say about their arguments."""

import dataclasses
import inspect
import re
import textwrap
from typing import Any


def read_arguments(target: Any) -> dict[str, str]:
    """Returns what a docstring's "Args:" or "Attributes:" say, in a line for each argument.

    For a parameter that takes a group of settings (`signatures.list_settable`), the lines of the
    group's fields are included.
    """
    found: dict[str, str] = {}
    for parameter in inspect.signature(target).parameters.values():
        default = parameter.default
        if dataclasses.is_dataclass(default) and not inspect.isclass(default):
            found |= read_arguments(type(default))
    sections = [_parse_section(one) for one in _list_docstrings(target)]
    for section in reversed(sections):  # a class's own come last and override those of its bases
        found |= section
    return found


def read_summary(target: Any) -> str:
    """Returns the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split())


def _list_docstrings(target: Any) -> list[str]:
    owners = inspect.getmro(target) if inspect.isclass(target) else (target,)
    texts = [inspect.cleandoc(owner.__doc__ or "") for owner in owners]
    if inspect.isclass(target):
        texts[1:1] = [inspect.getdoc(target.__init__) or ""]
    return texts


def _parse_section(text: str) -> dict[str, str]:
    """Reads the entries "name: text" of the sections of arguments, with continuation lines."""
    lines = {}
    for section in re.finditer(r"^(?:Args|Attributes):\n((?:[ ]+.*\n|\n)+)", text + "\n", re.M):
        entries = re.split(r"\n(?=\w)", textwrap.dedent(section[1]).strip())
        for entry in entries:
            name, colon, line = entry.partition(":")
            if colon:
                lines[name] = " ".join(line.split())
    return lines
