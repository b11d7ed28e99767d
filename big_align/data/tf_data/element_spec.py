"""Checks that a `tf.data.Dataset` has batches that can be trained on, before one is made."""

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
    """Checks the fields of a data set, their types and their shapes.

    Args:
      spec: `dataset.element_spec`.
      expected: the shape and the type of each field without the batch's axis, as the config has
        them; `image` may be a float instead.
      rows: rows of a batch of this process.
      where: the place in the config that names the pipeline, for messages.

    Raises:
      UserError: a field is wrong; the message names the first, and what would be right.
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
    """Checks how many rows a batch has, which a data set may not say beforehand.

    Raises:
      UserError: the number is wrong.
    """
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
