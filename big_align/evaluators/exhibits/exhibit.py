"""What an evaluation shows besides its numbers: examples, confused classes, or distributions."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image


class Item(NamedTuple):
    """An image, a text, or both."""

    image: UInt8[np.ndarray, "h w 3"] | None = None
    text: str = ""  # a caption, or the name of a class or tag
    right: bool | None = None  # whether it is a right answer; None if that does not apply


class Finding(NamedTuple):
    """A query, and what was found for it, best first."""

    query: Item
    found: list[Item]

    @property
    def has_images(self) -> bool:
        """Whether images were found."""
        return any(item.image is not None for item in self.found)


class Examples(NamedTuple):
    """Queries with what was found for each, and a note on how to read them."""

    title: str
    note: str
    rows: list[Finding]


class Confusion(NamedTuple):
    """How often images of a class are classified as another.

    Counts are by class, in rows, and by predicted class, in columns; a last column counts
    predictions of classes that are not listed.
    """

    title: str
    note: str
    names: list[str]
    counts: Int[np.ndarray, "c c_and_1"]


class Distributions(NamedTuple):
    """How the values of some groups are distributed, at each of several steps of training."""

    title: str
    note: str
    groups: list[str]
    edges: list[float]  # where bins of equal width begin, and where the last one ends
    shares: Float[np.ndarray, "t g b"]  # of the values of a group in each bin, oldest step first
    steps: list[int]  # an evaluation leaves out its own, which it does not know


Exhibit = Examples | Confusion | Distributions
Show = Callable[[], Sequence[Exhibit]]
"""Makes the exhibits of an evaluation."""


class Measured(NamedTuple):
    """The numbers of an evaluation, and what makes exhibits of it, which may read examples."""

    numbers: dict[str, float]
    show: Show


def encode(exhibit: Exhibit) -> dict[str, Any]:
    """Returns an exhibit as JSON values; images become data URLs."""
    if isinstance(exhibit, Confusion):
        return exhibit._asdict() | {"counts": exhibit.counts.tolist()}
    if isinstance(exhibit, Distributions):
        return exhibit._asdict() | {"shares": exhibit.shares.round(6).tolist()}
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


def continue_distributions(
    newest: Distributions, step: int, before: Mapping[str, Any] | None
) -> Distributions:
    """Returns the distributions of a step together with those of earlier steps, encoded.

    These are left out if they have other groups or bins, and so is what they have of this step and
    later ones, which a run repeats.
    """
    if before is None or any(before[x] != getattr(newest, x) for x in ("groups", "edges")):
        return newest._replace(steps=[step])
    kept = [number for number, each in enumerate(before["steps"]) if each < step]
    earlier = [np.asarray(before["shares"][number])[None] for number in kept]
    steps = [*(before["steps"][number] for number in kept), step]
    return newest._replace(shares=np.concatenate([*earlier, newest.shares]), steps=steps)
