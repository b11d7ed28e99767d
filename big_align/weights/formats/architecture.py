"""Which model a set of weights belongs to: a config node, and the shapes that follow from it."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util

from big_align.config.components import tables
from big_align.config.components.models import build_model, build_tower
from big_align.core.errors import ConfigError, WeightsMismatch, put_in_a_line
from big_align.weights.arrays.stored_arrays import StoredArray
from big_align.weights.formats.preprocessing import LARGEST_IMAGE
from big_align.weights.tables.mapping import Entry, to_ours, to_theirs

Node = Mapping[str, Any]
"""The arguments of a model as in a config: a tower with its `name`, or a dual encoder."""

Flat = Mapping[str, np.ndarray]
"""Arrays by path, "params/..." and "batch_stats/..."."""


Size = int | tuple[int, int] | None
"""Pixels of an edge of a model's images, or height and width; None for a text tower."""

LARGEST_WINDOW, MOST_PATCHES = 32, 2**14
"""Beyond any published model, but small enough to trace with little memory."""


def kind_of(node: Node) -> str:
    """Returns "dual", "image" or "text"."""
    if "image" in node and "text" in node:
        return "dual"
    for kind, table in tables.TOWERS.items():
        if node.get("name") in table:
            return kind
    known = ", ".join(sorted(tables.IMAGE_TOWERS | tables.TEXT_TOWERS))
    raise ConfigError(f"a model is named {node.get('name')!r}; known towers: {known}")


def make_model(node: Node) -> nn.Module:
    """Builds the model of a node."""
    kind = kind_of(node)
    if kind == "dual":
        return build_model({"model": node})
    return build_tower(node, kind, kind)


def check_sizes(node: Node, image_size: Any, arrays: Mapping[str, StoredArray], where: str) -> None:
    """Refuses models that the arrays of a file cannot belong to, before anything is built.

    A config may come from anywhere: it may name anything that can be imported, and describe a
    million layers.
    """
    dual = kind_of(node) == "dual"
    towers = {part: node[part] for part in tables.TOWERS if node[part]} if dual else {"": node}
    elements = sum(math.prod(array.shape) for array in arrays.values())
    _check_numbers(node, elements, where)
    for part, tower in towers.items():
        known = tables.TOWERS[part] if part else tables.IMAGE_TOWERS | tables.TEXT_TOWERS
        if tower.get("name") not in known:
            name, names = str(tower.get("name")), ", ".join(known)
            raise WeightsMismatch(f"{where}: a tower is named {name[:50]!r}; known: {names}")
        _check_numbers(tower, elements, where)
        try:
            stages = [max(depth, 0) for depth in make_model(tower).stage_depths]
        except ConfigError as error:
            raise WeightsMismatch(f"{where}: {put_in_a_line(str(error))}") from error
        if len(stages) > elements.bit_length() + 1 or sum(stages) > len(arrays):
            raise WeightsMismatch(
                f"{where} describes {sum(stages)} blocks in {len(stages)} stages, and has weights "
                f"of {len(arrays)} arrays"
            )
    _check_image(node["image"] if dual else node, image_size, where)


def _check_numbers(node: Node, elements: int, where: str) -> None:
    """Refuses numbers beyond the elements of all weights, since each is the size of some array."""
    for name, value in node.items():
        most = min(elements, LARGEST_WINDOW) if name == "window" else elements
        numbers = value if isinstance(value, tuple | list) else [value]
        if any(isinstance(number, int) and abs(number) > most for number in numbers):
            raise WeightsMismatch(
                f"{where}: {name} = {put_in_a_line(str(value))} is too large: with weights of "
                f"{elements} elements in all it is at most {most}"
            )


def _check_image(tower: Node, size: Any, where: str) -> None:
    """Refuses images for which a tower would make tables that no file explains."""
    if size is None:
        return
    edges = size if type(size) is tuple and len(size) == 2 else (size, size)
    for edge in edges:
        if type(edge) is not int or not 0 < edge <= LARGEST_IMAGE:
            raise WeightsMismatch(
                f"{where}: an edge of its images has {edge!r:.50} pixels; it must have from 1 to "
                f"{LARGEST_IMAGE}"
            )
    patch = getattr(make_model(tower), "patch", None)
    if patch and (edges[0] // patch) * (edges[1] // patch) > MOST_PATCHES:
        raise WeightsMismatch(
            f"{where}: images of {size} pixels have more than {MOST_PATCHES} patches of {patch}"
        )


def find_edges(size: Size) -> tuple[int, int]:
    """Returns height and width of a model's images; of a text tower, those of a pixel."""
    return size if isinstance(size, tuple) else (size or 1, size or 1)


def shape_inputs(kind: str, image_size: Size) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shapes of an example for a model of a kind: an image, a text and its mask."""
    image = jax.ShapeDtypeStruct((1, *find_edges(image_size), 3), np.float32)
    text = jax.ShapeDtypeStruct((1, 1), np.int32), jax.ShapeDtypeStruct((1, 1), np.bool_)
    return {"dual": (image, *text), "image": (image,), "text": text}[kind]


def expected_shapes(node: Node, image_size: Size) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array of a model, by path, without making any."""
    model, kind = make_model(node), kind_of(node)
    init, image_alone = model.init, kind == "dual" and not node["text"]
    if image_alone:
        init = functools.partial(model.init, method="encode_image")
    inputs = shape_inputs("image" if image_alone else kind, image_size)
    variables = nn.meta.unbox(jax.eval_shape(init, jax.random.PRNGKey(0), *inputs))
    return {k: v.shape for k, v in flatten(variables).items()}


def flatten(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays by path."""
    return traverse_util.flatten_dict(dict(variables), sep="/")


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns variables as a model takes them."""
    return traverse_util.unflatten_dict(dict(flat), sep="/")


def settings(tower: nn.Module) -> dict[str, Any]:
    """Returns a tower's arguments, including those that its variant decides, and its `name`."""
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
    """Returns the edge of the square grid that a table of positions holds."""
    side = math.isqrt(positions - extra)
    if side * side != positions - extra:
        raise WeightsMismatch(
            f"{positions} positions are {extra} and a grid that is not square; only square "
            f"images can be exchanged"
        )
    return side


def take(
    entries: Sequence[Entry],
    weights: Mapping[str, np.ndarray],
    shapes: Mapping,
    where: str,
    unused: Sequence[str],
) -> dict[str, np.ndarray]:
    """Turns the arrays of a file into ours, by path; an error lists all that does not fit.

    Each is read once. `unused` are parts of the names of those that may be left over.
    """
    left = sorted(set(weights) - {entry.theirs for entry in entries})
    strange = [name for name in left if not any(part in name for part in unused)]
    more = " ..." if len(strange) > 12 else ""
    faults = [f"no place for: {', '.join(strange[:12])}{more}"] if strange else []
    flat = {}
    for entry in entries:
        if entry.theirs not in weights:
            faults.append(f"{entry.theirs} is missing")
            continue
        array = weights[entry.theirs]
        try:
            pieces = to_ours(entry, array, shapes)
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
            f"{where} does not hold the model that its config describes:\n"
            + "\n".join(f"  {fault}" for fault in faults[:40])
        )
    return flat


COUNTED = "running_mean"
"""Beside these torch keeps a counter, which only serves a kind of momentum that we do not have."""


def give(entries: Sequence[Entry], flat: Flat) -> dict[str, Any]:
    """Returns functions that make their arrays, by name: only one is in memory at a time."""
    arrays = {entry.theirs: (lambda entry=entry: to_theirs(entry, flat)) for entry in entries}
    layers = [name.removesuffix(COUNTED) for name in arrays if name.endswith(COUNTED)]
    zero = functools.partial(np.zeros, (), np.int64)
    return {f"{layer}num_batches_tracked": zero for layer in layers} | arrays
