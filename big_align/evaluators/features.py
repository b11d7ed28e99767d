"""What evaluators of frozen features share: features with labels, classes, random orders."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, check_known
from big_align.data.examples import Source
from big_align.data.shard_offsets import ShardOffsets

VERBS = {"features": "image_features", "embedding": "embed_image"}
"""The method for each kind: pooled features before any projection, or unit-length embeddings."""
WHAT = tuple(VERBS)


class LabeledFeatures(NamedTuple):
    """The images of a set that could be read, one row each."""

    features: Float[np.ndarray, "n f"]
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"]
    """The class of each; or, for images with several, whether an image has each class."""


def check_what(what: str) -> str:
    """Returns `what`; raises a ValueError if it is not one of WHAT."""
    check_known("what", what, WHAT)
    return what


def take_readable(
    source: Source,
    features: Float[np.ndarray, "n f"],
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
    readable: Bool[np.ndarray, "n"],
    what: str,
    where: str,
) -> LabeledFeatures:
    """Leaves out the images that could not be decoded, and checks the others.

    The source has the examples in the same order, and gives their names; `what` is the kind of the
    features and `where` the name of the source in error messages.

    Raises:
      UserError: an example lacks a label (where there may be several, all do), or features are not
        finite. The message names the first example.
    """
    several_labels = label.ndim == 2
    not_finite = ~np.isfinite(features).all(axis=1)
    faults = [(not_finite, f"whose {what} is not finite; the model is broken")]
    if not several_labels:
        faults.insert(0, (label < 0, "without a label; all need one"))
    for wrong, reason in faults:
        numbers = np.flatnonzero(wrong & readable)
        if len(numbers):
            first = ShardOffsets(source.shard_sizes).locate_one(int(numbers[0]))
            raise UserError(
                f"{where}: {len(numbers)} of {len(label)} examples, "
                f"{source.name(*first)} the first, {reason}"
            )
    if not readable.any():
        raise UserError(f"{where}: there are no examples")
    found = LabeledFeatures(features[readable], label[readable])
    if several_labels and not found.label.any():
        raise UserError(f"{where}: no example has a label; let the source read them (`label`)")
    return found


def mark_classes(
    sets: Sequence[Collection[int]], count: int | None = None
) -> Bool[np.ndarray, "n c"]:
    """Marks the classes that each example has, of `count` or of those up to the largest label."""
    largest = max((max(s, default=-1) for s in sets), default=-1)
    present = np.zeros((len(sets), largest + 1 if count is None else count), bool)
    for row, labels in zip(present, sets, strict=True):
        row[list(labels)] = True
    return present


def widen_labels(*parts: LabeledFeatures | None) -> list[LabeledFeatures | None]:
    """Gives sets of several labels as many columns as the widest; a set may lack the last class."""
    several = [part.label for part in parts if part is not None and part.label.ndim == 2]
    classes = max((label.shape[1] for label in several), default=0)

    def widen(label: np.ndarray) -> np.ndarray:
        return np.pad(label, [(0, 0), (0, classes - label.shape[1])]) if label.ndim == 2 else label

    return [part and part._replace(label=widen(part.label)) for part in parts]


def find_classes(
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
) -> Int[np.ndarray, "k"]:
    """Returns the classes that have an example, in order, for labels of either form."""
    return np.unique(label) if label.ndim == 1 else np.flatnonzero(label.any(axis=0))


def check_classes(known: np.ndarray, label: np.ndarray, where: str, where_known: str) -> None:
    """Raises a UserError if a class of `label` is not in `known`, for labels of either form."""
    strange = np.setdiff1d(find_classes(label), find_classes(known))
    if len(strange):
        raise UserError(
            f"{where}: {len(strange)} classes, {strange[0]} among them, have no example in "
            f"{where_known}; the labels of both must mean the same classes"
        )


def rarest_classes(present: Bool[np.ndarray, "n c"]) -> Int[np.ndarray, "n"]:
    """Returns the rarest of each example's classes; -1 if it has none."""
    rarest = np.where(present, present.sum(axis=0), len(present) + 1).argmin(axis=1)
    return np.where(present.any(axis=1), rarest, -1)


def shuffle_in_classes(
    label: Int[np.ndarray, "n"], seed: int, draw: int = 0
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Returns the place of each example in a random order of its class, and the size of the class.

    Orders are the same for the same arguments; those of different draws are independent.
    """
    noise = np.random.default_rng([seed, draw]).permutation(len(label))
    order = np.lexsort((noise, label))
    _, first, inverse, count = np.unique(
        label[order], return_index=True, return_inverse=True, return_counts=True
    )
    place, size = np.empty((2, len(label)), np.int64)
    place[order] = np.arange(len(label)) - first[inverse]
    size[order] = count[inverse]
    return place, size
