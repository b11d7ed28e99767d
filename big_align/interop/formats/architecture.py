"""What a set of weights is a model of: a node of a config, and the shapes that follow from it."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from big_align.components import tables
from big_align.components.models import build_model, build_tower
from big_align.errors import ConfigError, WeightsMismatch
from big_align.interop.tables.mapping import Entry, to_ours, to_theirs

Node = Mapping[str, Any]
"""The arguments of a model as in a config: of a tower with its `name`, or of a dual encoder."""

Flat = Mapping[str, np.ndarray]
"""Arrays by path, "params/..." and "batch_stats/..."."""


def kind_of(node: Node) -> str:
    """Returns "dual", "image" or "text"."""
    if "image" in node and "text" in node:
        return "dual"
    kinds = {"image": tables.IMAGE_TOWERS, "text": tables.TEXT_TOWERS}
    for kind, table in kinds.items():
        if node.get("name") in table:
            return kind
    known = ", ".join(sorted([*tables.IMAGE_TOWERS, *tables.TEXT_TOWERS]))
    raise ConfigError(f"a model is named {node.get('name')!r}; known towers: {known}")


def make_model(node: Node) -> nn.Module:
    """Builds the model of a node."""
    kind = kind_of(node)
    if kind == "dual":
        return build_model({"model": node})
    return build_tower(node, kind, f"the {kind} tower")


def expected_shapes(node: Node, image_size: int | None) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of a model, without making any.

    Args:
      node: the model.
      image_size: pixels of an edge of its images; None for a text tower.
    """
    model, kind = make_model(node), kind_of(node)
    image = jax.ShapeDtypeStruct((1, image_size or 1, image_size or 1, 3), np.float32)
    text = jax.ShapeDtypeStruct((1, 1), np.int32), jax.ShapeDtypeStruct((1, 1), np.bool_)
    inputs = {"dual": (image, *text), "image": (image,), "text": text}[kind]
    init = model.init
    if kind == "dual" and not node["text"]:
        inputs, init = (image,), functools.partial(model.init, method="encode_image")
    variables = nn.meta.unbox(jax.eval_shape(init, jax.random.PRNGKey(0), *inputs))
    return {k: v.shape for k, v in flatten(variables).items()}


def flatten(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by path."""
    return traverse_util.flatten_dict(dict(variables), sep="/")


def unflatten(flat: Flat) -> dict[str, Any]:
    """Returns variables as a model takes them."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def settings(tower: nn.Module) -> dict[str, Any]:
    """Returns the arguments of a tower with those that its variant decides, and its `name`."""
    towers = tables.IMAGE_TOWERS | tables.TEXT_TOWERS
    path = f"{type(tower).__module__}:{type(tower).__name__}"
    name = next(name for name, target in towers.items() if target == path)
    given = {
        field.name: getattr(tower, field.name)
        for field in dataclasses.fields(tower)
        if field.name not in ("parent", "name")
    }
    return given | tower.resolved | {"name": name}


def depths_of(node: Node) -> dict[str, Sequence[int]]:
    """Returns blocks by stage for `mapping.correspond`."""
    model = make_model(node)
    if kind_of(node) == "dual":
        return {f"{part}/": getattr(model, part).stage_depths for part in ("image", "text")}
    return {"": model.stage_depths}


def side_of_grid(positions: int, extra: int) -> int:
    """Returns the edge of the square grid that a table of positions holds.

    Raises:
      WeightsMismatch: the grid is not a square.
    """
    side = math.isqrt(positions - extra)
    if side * side != positions - extra:
        raise WeightsMismatch(
            f"{positions} positions are {extra} and a grid that is not square; only square "
            f"images can be exchanged"
        )
    return side


def take(
    entries: Sequence[Entry], weights: Mapping[str, np.ndarray], shapes: Mapping, where: str
) -> dict[str, np.ndarray]:
    """Turns the arrays of a file into ours.

    Args:
      entries: what corresponds to what.
      weights: arrays by their names; each is read once.
      shapes: the shapes that ours must have, by path.
      where: the file or folder, for messages.

    Returns:
      Arrays by path.

    Raises:
      WeightsMismatch: arrays are missing or have other shapes; the message lists all.
    """
    faults, flat = [], {}
    for entry in entries:
        if entry.theirs not in weights:
            faults.append(f"{entry.theirs} is missing")
            continue
        array = weights[entry.theirs]
        try:
            pieces = to_ours(entry, array)
        except (ValueError, IndexError, TypeError):
            faults.append(f"{entry.theirs} has shape {list(array.shape)}")
            continue
        for path, piece in pieces.items():
            if piece.shape != shapes[path]:
                faults.append(
                    f"{entry.theirs} has shape {list(array.shape)}, which gives {list(piece.shape)}"
                    f" where the model has {list(shapes[path])}"
                )
        flat |= pieces
    if faults:
        raise WeightsMismatch(
            f"{where} does not hold the model that its config describes; {len(faults)} arrays "
            f"differ:\n" + "\n".join(f"  {fault}" for fault in faults[:40])
        )
    return flat


COUNTED = "running_mean"
"""Beside these torch keeps a counter, which is only used by a momentum that we do not have."""


def _zero() -> np.ndarray:
    return np.zeros((), np.int64)


def give(entries: Sequence[Entry], flat: Flat) -> dict[str, Any]:
    """Returns functions that make the arrays of theirs, by name: one is in memory at a time."""
    arrays = {entry.theirs: (lambda entry=entry: to_theirs(entry, flat)) for entry in entries}
    statistics = [name for name in arrays if name.endswith(COUNTED)]
    counters = {name[: -len(COUNTED)] + "num_batches_tracked": _zero for name in statistics}
    return counters | arrays
