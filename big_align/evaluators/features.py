"""What evaluators of frozen features share: reading features with labels, splits, random orders."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.data.examples import Source
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.evaluators.embedder import Embedder

VERBS = {"features": "image_features", "embedding": "embed_image"}
"""The method for each kind: pooled features before any projection, or unit-length embeddings."""
WHAT = tuple(VERBS)


class LabeledFeatures(NamedTuple):
    """The images of a set that could be read.

    Attributes:
      features: one row per image.
      label: the class of each; or, for images with several, whether an image has each class.
    """

    features: Float[np.ndarray, "n f"]
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"]


def check_what(what: str) -> str:
    """Returns `what`; raises a ValueError if it is not one of WHAT."""
    if what not in WHAT:
        raise ValueError(f"what = {what!r} is unknown; known: {', '.join(WHAT)}")
    return what


def read_features(
    embedder: Embedder,
    source: Source,
    transform: str,
    what: str,
    max_broken_fraction: float,
    where: str,
    several_labels: bool = False,
) -> LabeledFeatures:
    """Embeds the images of a source; those that cannot be decoded are left out.

    Args:
      embedder: embedder of the model.
      source: examples with an image and one label, or any number of labels.
      transform: image operations, without randomness.
      what: one of WHAT.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.
      where: name of the source in error messages.
      several_labels: whether examples have any number of labels; the number of classes is then the
        largest label plus one.

    Raises:
      UserError: an example does not have exactly one label, or, with `several_labels`, none has
        any; or features are not finite. The message names the first example.
    """
    given = transform, (what,), max_broken_fraction, where, several_labels
    return read_kinds(embedder, source, *given)[what]


def read_kinds(
    embedder: Embedder,
    source: Source,
    transform: str,
    whats: tuple[str, ...],
    max_broken_fraction: float,
    where: str,
    several_labels: bool = False,
) -> dict[str, LabeledFeatures]:
    """Reads each kind in `whats` like `read_features`, all in one pass over the images."""
    rows = embedder.batch_size, embedder.rows
    with EvalLoader(source, transform, *rows, max_broken_fraction=max_broken_fraction) as loader:
        found, readable = _embed(embedder, loader, whats)
        label = mark_classes(loader.label_sets()) if several_labels else loader.labels()
    return {
        what: take_readable(source, found[what], label, readable, what, where) for what in whats
    }


def _embed(
    embedder: Embedder, loader: EvalLoader, whats: tuple[str, ...]
) -> tuple[Mapping[str, Float[np.ndarray, "n _"]], Bool[np.ndarray, "n"]]:
    """Returns the rows of each kind, and which of them belong to real images."""
    given = loader.images(), loader.num_examples
    if set(whats) == set(WHAT):
        embedding, features, readable = embedder.embeddings_and_features(*given)
        return {"embedding": embedding, "features": features}, readable
    (what,) = whats
    embed = {"features": embedder.image_features, "embedding": embedder.embed_images}[what]
    rows, readable = embed(*given)
    return {what: rows}, readable


def take_readable(
    source: Source,
    features: Float[np.ndarray, "n f"],
    label: Int[np.ndarray, "n"] | Bool[np.ndarray, "n c"],
    readable: Bool[np.ndarray, "n"],
    what: str,
    where: str,
) -> LabeledFeatures:
    """Leaves out the images that could not be decoded, and checks the others.

    Args:
      source: source of the examples, in the same order, for their names.
      features: one row per image.
      label: label of each image, in one of the forms of `LabeledFeatures`.
      readable: False where an image could not be decoded.
      what: kind of the features, for error messages.
      where: name of the source in error messages.

    Raises:
      UserError: as for `read_features`.
    """
    several_labels = label.ndim == 2
    not_finite = ~np.isfinite(features).all(axis=1)
    faults = [(not_finite, f"whose {what} is not finite; the model is broken")]
    if not several_labels:
        faults.insert(0, (label < 0, "without a label; all need one"))
    for wrong, reason in faults:
        numbers = np.flatnonzero(wrong & readable)
        if len(numbers):
            raise UserError(
                f"{where}: {len(numbers)} of {len(label)} examples, "
                f"{_name(source, int(numbers[0]))} the first, {reason}"
            )
    if not readable.any():
        raise UserError(f"{where}: there are no examples")
    found = LabeledFeatures(features[readable], label[readable])
    if several_labels and not found.label.any():
        raise UserError(f"{where}: no example has a label; let the source read them (`label`)")
    return found


def mark_classes(
    sets: Sequence[tuple[int, ...]], count: int | None = None
) -> Bool[np.ndarray, "n c"]:
    """Marks the classes that each example has.

    Args:
      sets: the labels of each example.
      count: number of classes; None for the largest label plus one.
    """
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


def _name(source: Source, number: int) -> str:
    """Returns the name of the example at a position in the source's own order."""
    ends = np.cumsum(source.shard_sizes)
    shard = int(np.searchsorted(ends, number, side="right"))
    return source.name(shard, int(number - ends[shard] + source.shard_sizes[shard]))


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
    """Puts the examples of each class in a random order, the same for the same arguments.

    Args:
      label: the class of each example.
      seed: seed of the order.
      draw: orders of different draws are independent.

    Returns:
      The position of each example in its class, and how many examples that class has.
    """
    noise = np.random.default_rng([seed, draw]).permutation(len(label))
    order = np.lexsort((noise, label))
    _, first, inverse, count = np.unique(
        label[order], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty(len(label), np.int64)
    size = np.empty(len(label), np.int64)
    place[order] = np.arange(len(label)) - first[inverse]
    size[order] = count[inverse]
    return place, size
