"""Reference weights read through the tables of big_align.weights, and tables checked by shapes."""

import json
import pathlib

import flax.linen as nn
import jax
import numpy as np
from flax import traverse_util
from safetensors.numpy import load_file

from big_align.models.dual_encoder import DualEncoder
from big_align.weights.tables import mapping

UNUSED = ("num_batches_tracked", "pooler.", "logit_scale", "temperature")
"""Parts of the names of reference arrays that no tower of ours has."""


def describe(model: nn.Module, *inputs) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape of every variable by path, without computing anything."""
    variables = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), *inputs))
    return traverse_util.flatten_dict(variables, sep="/")


def find_depths(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns blocks by stage, of one tower or of the two of a dual encoder."""
    if isinstance(model, DualEncoder):
        return {"image/": model.image.stage_depths, "text/": model.text.stage_depths}
    return {"": getattr(model, "stage_depths", ())}


def load_mapped(folder: pathlib.Path, table: list, model: nn.Module, *inputs) -> dict:
    """Returns the variables of a model, filled with the weights of a reference.

    Fails unless every variable gets an array of its shape, every array is used, and the way back
    gives the same arrays, but for the second of BERT's two segments, which ours does not have.
    """
    weights = load_file(folder / "model.safetensors")
    weights = {k: v for k, v in weights.items() if not any(part in k for part in UNUSED)}
    shapes = describe(model, *inputs)
    entries = mapping.correspond(table, shapes, find_depths(model))
    assert {entry.theirs for entry in entries} == set(weights)

    flat = {}
    for entry in entries:
        ours = {path: shapes[path].shape for path in entry.ours}
        flat |= mapping.to_ours(entry, weights[entry.theirs], ours)
        back = mapping.to_theirs(entry, flat)
        rows = slice(0, 1) if entry.reorder == "first of two" else ...
        np.testing.assert_array_equal(back[rows], weights[entry.theirs][rows])
    assert {k: v.shape for k, v in flat.items()} == {k: v.shape for k, v in shapes.items()}
    return traverse_util.unflatten_dict(flat, sep="/")


def check_published_shapes(
    reference_dir: pathlib.Path, name: str, table: list, model: nn.Module, size: int = 224
) -> None:
    """Checks that a model has the parameters of one of timm's, array for array."""
    published = json.loads((reference_dir / "timm_shapes.json").read_text())[name]
    shapes = describe(model, jax.ShapeDtypeStruct((1, size, size, 3), np.float32))
    parameters = [v.size for k, v in shapes.items() if k.startswith("params/")]
    assert sum(parameters) == published["params"]

    entries = mapping.correspond(table, shapes, {"": model.stage_depths})
    # Arrays without memory of their own: only their shapes are of interest.
    empty = {k: np.broadcast_to(np.float32(0), v.shape) for k, v in shapes.items()}
    theirs = {entry.theirs: list(mapping.to_theirs(entry, empty).shape) for entry in entries}
    state = published["state"].items()
    assert theirs == {k: v for k, v in state if not any(part in k for part in UNUSED)}
