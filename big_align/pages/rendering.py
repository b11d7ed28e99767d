"""Pages are templates filled with values: a value is text, and never markup."""

import base64
import functools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jinja2
import markupsafe
import numpy as np

from big_align.evaluators.exhibits.exhibit import encode_image
from big_align.pages.plots.shades import shade_confusion

LONG = 16
"""Characters of a word that is broken only if a line has no room for it."""
JOINTS = re.compile(r"(?<=[/=|,])(?=\S)|(?<=[_-])(?=[^\W\d])|(?<=\.)(?=[^\W\d]\w{3})")
"""Where longer words may be broken: after the signs that join the parts of names."""


class Tile(NamedTuple):
    """An important number, what it is, and whether it tells of a fault."""

    number: str
    what: str
    warn: bool = False


def render(template: str, **values: Any) -> str:
    """Returns a page that needs no other file, from a file of `templates/`.

    It is an error if anything that the template names is missing.
    """
    return _make_environment().get_template(template).render(values)


@functools.cache
def _make_environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": "{:,}".format,
        "duration": format_time,
        "jpeg": write_address,
        "number": format_number,
        "percent": format_percent,
        "joints": mark_joints,
        "picture": encode_image,
        "shades": lambda counts: counts and shade_confusion(np.array(counts)).round(3).tolist(),
    }
    return made


def write_address(jpeg: bytes) -> str:
    """Returns a data URL that holds a JPEG; one of no picture if it is empty."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" if jpeg else "data:,"


def mark_joints(text: str) -> markupsafe.Markup:
    """Returns a text whose long words, such as paths and names, may be broken at their joints."""
    words = re.split(r"(\s+)", text)
    broken = (JOINTS.split(word) if len(word) > LONG else [word] for word in words)
    return markupsafe.Markup().join(markupsafe.Markup("<wbr>").join(parts) for parts in broken)


def format_number(value: float) -> str:
    """Formats a number with four significant digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_source(node: Mapping[str, Any]) -> str:
    """Formats the fields of a source in a config, except what is empty or off."""
    return " ".join(f"{k}={v}" for k, v in node.items() if v or type(v) in (int, float))


def format_percent(part: float | int, total: float | int = 1) -> str:
    """Formats a part of a total as a percentage; one of nothing is 0%."""
    share = 100 * part / (total or 1)
    return f"{share:.2g}%" if 0 < share < 1 else f"{share:.1f}".removesuffix(".0") + "%"


def format_time(seconds: float) -> str:
    """Formats a duration."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
