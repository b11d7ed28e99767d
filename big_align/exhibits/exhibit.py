"""What an evaluation shows besides its numbers: a few examples, or which classes are confused."""

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
      text: a caption, or the name of a class or tag.
      right: whether it is a right answer; None if that does not apply.
    """

    image: UInt8[np.ndarray, "h w 3"] | None = None
    text: str = ""
    right: bool | None = None


class Finding(NamedTuple):
    """A query, and what was found for it, best first."""

    query: Item
    found: list[Item]


class Examples(NamedTuple):
    """Queries with what was found for each.

    Attributes:
      title: title of the exhibit.
      note: how to read them.
      rows: one for each query.
    """

    title: str
    note: str
    rows: list[Finding]


class Confusion(NamedTuple):
    """How often images of a class are classified as another.

    Attributes:
      title: title of the exhibit.
      note: how to read it.
      names: names of the classes.
      counts: numbers of images by class, in rows, and by predicted class, in columns; a last column
        counts predictions of classes that are not listed.
    """

    title: str
    note: str
    names: list[str]
    counts: Int[np.ndarray, "c c_and_1"]


Exhibit = Examples | Confusion
Show = Callable[[], Sequence[Exhibit]]
"""Makes the exhibits of an evaluation."""


class Measured(NamedTuple):
    """The outcome of an evaluation.

    Attributes:
      numbers: numbers by name.
      show: makes the exhibits from the results of the evaluation; it may read examples.
    """

    numbers: dict[str, float]
    show: Show


def encode(exhibit: Exhibit) -> dict[str, Any]:
    """Returns an exhibit as JSON values; images become data URLs."""
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
    """Returns an image as a data URL."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", quality=88, method=2)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
