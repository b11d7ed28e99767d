"""What evaluators of frozen features share: reading features with labels, splits and draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from big_align.data.loader import EvalLoader
from big_align.data.sources import Source
from big_align.embedding import Embedder
from big_align.errors import UserError

WHAT = ("features", "embedding")
"""What the image tower pools, before any projection; or the unit-length embedding."""


class LabelledFeatures(NamedTuple):
    """The images of a set that could be read.

    Attributes:
      features: one row an image.
      label: the class of each.
    """

    features: Float[np.ndarray, "n f"]
    label: Int[np.ndarray, "n"]


def check_what(what: str) -> str:
    """Returns `what`; raises ValueError where it is not one of WHAT."""
    if what not in WHAT:
        raise ValueError(f"what = {what!r} is unknown; known: {', '.join(WHAT)}")
    return what


def read_features(
    embedder: Embedder,
    source: Source,
    transform: str,
    what: str,
    max_broken_share: float,
    where: str,
) -> LabelledFeatures:
    """Embeds the images of a source; those that cannot be decoded are left out.

    Args:
      embedder: of the model.
      source: examples with an image and a label.
      transform: image operations, without randomness.
      what: one of WHAT.
      max_broken_share: the share of broken examples above which evaluation stops.
      where: stands for the source in messages.

    Raises:
      UserError: an example has no label, or its features are not finite; the first is named.
    """
    rows = embedder.batch_size, embedder.rows
    with EvalLoader(source, transform, *rows, max_broken_share=max_broken_share) as loader:
        embed = {"features": embedder.image_features, "embedding": embedder.embed_images}[what]
        features, readable = embed(loader.images(), loader.num_examples)
        label = loader.labels()
    for wrong, reason in (
        (label < 0, "without a label; all need one"),
        (~np.isfinite(features).all(axis=1), f"whose {what} is not finite; the model is broken"),
    ):
        numbers = np.flatnonzero(wrong & readable)
        if len(numbers):
            raise UserError(
                f"{where}: {len(numbers)} of {len(label)} examples, "
                f"{_name(source, int(numbers[0]))} the first, {reason}"
            )
    if not readable.any():
        raise UserError(f"{where}: there are no examples")
    return LabelledFeatures(features[readable], label[readable])


def _name(source: Source, number: int) -> str:
    """Names the example at a place of the source's own order."""
    ends = np.cumsum(source.shard_sizes)
    shard = int(np.searchsorted(ends, number, side="right"))
    return source.name(shard, int(number - ends[shard] + source.shard_sizes[shard]))


def check_classes(
    known: Int[np.ndarray, "n"], label: Int[np.ndarray, "m"], where: str, where_known: str
) -> None:
    """Raises UserError where a class of `label` is not among those of `known`."""
    strange = np.setdiff1d(label, known)
    if len(strange):
        raise UserError(
            f"{where}: {len(strange)} classes, {strange[0]} among them, have no example in "
            f"{where_known}; the labels of both must mean the same classes"
        )


def shuffle_in_classes(
    label: Int[np.ndarray, "n"], seed: int, draw: int = 0
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Puts the examples of each class in a random order, the same for the same arguments.

    Args:
      label: the class of each example.
      seed: of the order.
      draw: orders of different draws are independent.

    Returns:
      The place of each example in its class, and how many examples that class has.
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
