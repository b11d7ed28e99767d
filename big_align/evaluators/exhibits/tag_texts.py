"""How well captions and texts of tags fit their images (IDEA, Huang et al. 2022, Fig. 8)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.evaluators.exhibits.tags import Found


class Fit(NamedTuple):
    """Cosines of images with texts of one kind, their own and another's, by a model that judges."""

    own: Float[np.ndarray, " n"]
    other: Float[np.ndarray, " n"]


def write_texts(
    found: Found, names: Sequence[str], written: Bool[np.ndarray, "n c"]
) -> tuple[Int[np.ndarray, " k"], list[str], list[str]]:
    """Writes the two texts of each image in which a tag is found.

    `written` are the tags that training would write into the new text of each image, if any.
    Returns rows of `found`; the first given caption of each; and the names of its tags in the order
    in which training writes them, that of the list.

    Raises:
      UserError: tags are found in fewer than two images.
    """
    rows = np.flatnonzero(written.any(axis=1) & np.array([bool(x) for x in found.captions]))
    if len(rows) < 2:
        raise UserError(
            f"tags are found in {len(rows)} images that have a caption, but a comparison needs "
            "two: train for longer, or lower the evaluator's threshold"
        )
    tags = [" ".join(names[n] for n in np.flatnonzero(written[row])) for row in rows]
    return rows, [found.captions[row][0] for row in rows], tags


def measure_fit(zimg: Float[np.ndarray, "n d"], ztxt: Float[np.ndarray, "n d"]) -> Fit:
    """Returns the cosines of each image with its own text and with that of another image."""
    away = np.roll(ztxt, len(ztxt) // 2, axis=0)
    return Fit((zimg * ztxt).sum(axis=1), (zimg * away).sum(axis=1))
