"""Checks of what is in a batch that a user's `tf.data.Dataset` has made.

Values out of range would train without a word: an id of -1 is the last row of a table, one beyond
its end is NaN, and images from 0 to 1 that are taken for standardized ones are all gray.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from big_align.core.errors import UserError
from big_align.data.workers.batch_memory import HostBatch

LOWEST = {"text": 0, "label": -1, "tags": -1, "true_tags": -1, "clusters": -1}
"""The lowest value of each field of numbers."""

MEANINGS = {
    "text": "ids of tokens are from 0 to {0} (config.model.text.vocab_size); pad texts with the id "
    "of the padding, often 0, and let text_mask be False there",
    "label": "labels are from 0 to {0}, the classes of config.data, and -1 for pairs",
    "tags": "tags are from 0 to {0}, those of config.data.tags.path, and -1 for none",
    "true_tags": "tags are from 0 to {0}, those of config.data.tags.path, and -1 for none",
    "clusters": "clusters are from 0 to {0} (config.objective.num_clusters), and -1 for none",
}
"""What the values of each field are."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a model can take.

    Attributes:
      counts: how many ids, classes, tags and clusters there are, by field; fields that are left out
        have no upper limit.
      colors: what a model that is given floats takes for black and for white.
    """

    counts: Mapping[str, int]
    colors: tuple[float, float]


def check_numbers(batch: HostBatch, limits: Limits, where: str) -> None:
    """Checks the fields of numbers of a batch; it takes microseconds.

    Raises:
      UserError: a number is out of range; the message names it.
    """
    for name, lowest in LOWEST.items():
        array = batch.get(name)
        if array is None or not array.size:
            continue
        count = limits.counts.get(name)
        low, high = int(array.min()), int(array.max())
        if low >= lowest and (count is None or high < count):
            continue
        meaning = MEANINGS[name].format("..." if count is None else count - 1)
        raise UserError(f"{where}: {name} has a {low if low < lowest else high}; {meaning}")


def check_first(batch: HostBatch, limits: Limits, where: str) -> None:
    """Checks more of a first batch: its colors, and that there is something to learn from.

    Raises:
      UserError: the images are not what the model takes, or all rows are empty.
    """
    if not (real := batch["mask"]).any():
        raise UserError(
            f"{where}: mask is False in all rows of the first batch, so none would be trained on; "
            "it is True on rows that are examples, and may be left out if all are"
        )
    fields = {"text_mask": batch["text_mask"]}
    fields |= {k: batch[k] >= 0 for k in LOWEST if k in batch and k != "text"}
    if not any(field[real].any() for field in fields.values()):
        names = " nor ".join(k for k in fields if k != "text_mask")
        raise UserError(
            f"{where}: text_mask is False in all of the first batch, and it has no {names}, so "
            "there is nothing to learn from; text_mask is True on real tokens"
        )
    for name in ("image", "image_embedding", "text_embedding"):
        if name in batch and batch[name].dtype.kind == "f" and not np.isfinite(batch[name]).all():
            raise UserError(f"{where}: {name} has NaN or infinity in the first batch")
    _check_colors(batch["image"][real], limits.colors, where)


def _check_colors(image: np.ndarray, colors: tuple[float, float], where: str) -> None:
    low, high = float(image.min()), float(image.max())
    black, white = colors
    if image.dtype.kind != "f":
        if high == 1:
            raise UserError(
                f"{where}: image is uint8 up to 1 in the first batch; images from 0 to 1 are "
                "multiplied by 255 first, tf.cast(tf.round(255 * image), tf.uint8)"
            )
        return
    span = white - black
    fraction = 0 <= low < high <= 1 and black < 0
    if fraction or low < black - span or high > white + span:
        scaled = "255 * image" if fraction else "image"
        raise UserError(
            f"{where}: image is float from {low:g} to {high:g} in the first batch, and the model "
            f"takes floats as they are, {black:.3g} for black and {white:.3g} for white; cast to "
            f"uint8, tf.cast(tf.round({scaled}), tf.uint8), or standardize it by the model's "
            "image_mean and image_std"
        )
