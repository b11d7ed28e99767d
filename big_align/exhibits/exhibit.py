"""What an evaluation shows beside its numbers: a few examples, or which classes are confused."""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image


class Item(NamedTuple):
    """An image, a text, or both.

    Attributes:
      image: its pixels.
      text: a caption, the name of a class or of a tag.
      right: whether it is a right answer; None where that is not asked.
    """

    image: UInt8[np.ndarray, "h w 3"] | None = None
    text: str = ""
    right: bool | None = None


class Finding(NamedTuple):
    """A query, and what was found for it, the best first."""

    query: Item
    found: list[Item]


class Examples(NamedTuple):
    """Queries with what was found for them.

    Attributes:
      title: what they are.
      note: how to read them.
      rows: one for each query.
    """

    title: str
    note: str
    rows: list[Finding]


class Confusion(NamedTuple):
    """How often images of a class are taken for another.

    Attributes:
      title: what it is.
      note: how to read it.
      names: of the classes.
      counts: images by their class and, in columns, by the class they are taken for; a last column
        counts those that are taken for a class that is not listed.
    """

    title: str
    note: str
    names: list[str]
    counts: Int[np.ndarray, "c c_and_1"]


Exhibit = Examples | Confusion
Show = Callable[[], Sequence[Exhibit]]
"""Makes what an evaluation shows."""


class Measured(NamedTuple):
    """The outcome of an evaluation.

    Attributes:
      numbers: by name.
      show: makes the exhibits from what the evaluation has computed; it may read examples.
    """

    numbers: dict[str, float]
    show: Show


def encode(exhibit: Exhibit) -> dict[str, Any]:
    """Returns what JSON can hold of an exhibit; images become addresses that hold them."""
    if isinstance(exhibit, Confusion):
        return exhibit._asdict() | {"counts": exhibit.counts.tolist()}
    rows = [
        {"query": _encode_item(row.query), "found": [_encode_item(item) for item in row.found]}
        for row in exhibit.rows
    ]
    return exhibit._asdict() | {"rows": rows}


def _encode_item(item: Item) -> dict[str, Any]:
    image = None if item.image is None else encode_image(item.image)
    return item._asdict() | {"image": image}


def encode_image(pixels: UInt8[np.ndarray, "h w 3"]) -> str:
    """Returns an image as an address that holds it."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", quality=88, method=2)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
