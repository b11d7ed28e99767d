"""Checks of the batches of a user's `tf.data.Dataset`: their fields, and what is in them.

Values out of range would train without a word: an id of -1 is the last row of a table, one beyond
its end is NaN, and images from 0 to 1 that are taken for standardized ones are all gray.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from big_align.core.errors import UserError, suggest
from big_align.data import tensorflow_on_cpu
from big_align.data.workers.batch_memory import HostBatch, Row

DEFAULTS = {"label": -1, "mask": True}
"""Fields that a data set may leave out, and their values then."""

EXTRA = {
    "tags": ((None,), np.int32),
    "true_tags": ((None,), np.int32),
    "clusters": ((None,), np.int32),
    "image_embedding": ((None,), np.float32),
}
"""Additional fields that a data set may have, and what one row of them is."""

REMEDIES = {
    "image": "make pictures of this size, or set config.data.transform to one that does, such as "
    "'resize({0})'",
    "text": "cut or pad texts to config.tokenizer.length",
    "text_mask": "it has the shape of text, and is True on real tokens",
}
"""How to fix the shape of a field."""


def check_spec(spec: Any, expected: Row, rows: int, where: str) -> None:
    """Raises UserError about the first field of a data set that is missing or wrong.

    `spec` is `dataset.element_spec`, and `expected` the shape and the type of each field without
    the batch's axis, as the config has them; `image` may be a float instead.
    """
    tf = tensorflow_on_cpu.load()
    if not isinstance(spec, Mapping):
        raise UserError(
            f"{where} makes elements of {type(spec).__name__}; it must make dictionaries of "
            f"batches, with the fields {', '.join(expected)}"
        )
    known = {**EXTRA, **expected}
    for name in expected:
        if name not in spec and name not in DEFAULTS:
            raise UserError(f"{where} makes no {name!r}; it makes {', '.join(map(str, spec))}")
    for name, field in spec.items():
        if name not in known:
            raise UserError(
                f"{where} makes {name!r}, which is no field of a batch{suggest(str(name), known)}; "
                f"they are {', '.join(known)}"
            )
        if not isinstance(field, tf.TensorSpec):
            raise UserError(f"{where}: {name} is a {type(field).__name__}; make it a dense tensor")
        _check_field(name, field, known[name], rows, where)


def _check_field(
    name: str, field: Any, expected: tuple[tuple[int | None, ...], Any], rows: int, where: str
) -> None:
    shape, kind = expected
    kinds = [np.dtype(kind)] + [np.dtype(np.float32)] * (name == "image")
    if field.dtype.as_numpy_dtype not in kinds:
        raise UserError(
            f"{where}: {name} is of type {field.dtype.name}; it must be "
            f"{' or '.join(k.name for k in kinds)}: tf.cast(..., tf.{kinds[0].name})"
        )
    found = field.shape.as_list() if field.shape.rank is not None else None
    wanted = (rows, *shape)
    if found is None or len(found) != len(wanted):
        raise UserError(
            f"{where}: {name} has the shape {found}; it must have {len(wanted)} axes, "
            f"{_show(wanted)}; tf.ensure_shape(..., {_show(wanted)}) says so to TensorFlow"
        )
    if found[0] not in (rows, None):
        raise UserError(
            f"{where}: {name} has batches of {found[0]}; those of a process must have {rows} rows "
            f"(its share of config.batch_size): batch({rows}, drop_remainder=True)"
        )
    fits = all(w is None or f == w for f, w in zip(found[1:], wanted[1:], strict=True))
    if not fits or None in found[1:]:
        remedy = REMEDIES.get(name, "tf.ensure_shape says a shape to TensorFlow")
        raise UserError(
            f"{where}: {name} has the shape {_show(found)}, the config's is {_show(wanted)}: "
            + remedy.format(*(str(size) for size in found[-2:-1]))
        )


def check_rows(batch: HostBatch, rows: int, where: str) -> None:
    """Checks how many rows a batch has, which a data set may not say beforehand."""
    for name, array in batch.items():
        if len(array) != rows:
            raise UserError(
                f"{where}: a batch has {len(array)} rows of {name} where {rows} are wanted; "
                f"batch({rows}, drop_remainder=True) after repeat() makes all of one size"
            )


def complete_batch(batch: HostBatch, rows: int) -> HostBatch:
    """Returns a batch with the fields that were left out."""
    kinds = {"label": np.int32, "mask": bool}
    missing = {k: np.full(rows, v, kinds[k]) for k, v in DEFAULTS.items() if k not in batch}
    return {**batch, **missing}


def _show(shape: Any) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


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
    """What a model can take."""

    counts: Mapping[str, int]  # ids, classes, tags and clusters, by field; no limit without one
    colors: tuple[float, float]  # the floats that a model takes for black and for white


def check_numbers(batch: HostBatch, limits: Limits, where: str) -> None:
    """Checks that the numbers of a batch are in range; it takes microseconds."""
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
    """Checks more of a first batch: its colors, and that there is something to learn from."""
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
