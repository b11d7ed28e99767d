"""What a workdir holds once it has been trained in: a model, its config and its class centers."""

import os
import pathlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from big_align import interop
from big_align.components.models import build_model
from big_align.interop.formats.native_format import read_config
from big_align.interop.formats.preprocessing import Preprocessing
from big_align.interop.formats.pretrained import Pretrained
from big_align.interop.formats.text_files import read_json
from big_align.runs import build, check, restore
from big_align.training.checkpoint import FOLDER
from big_align.types import Objective, Params

RENAMED = {
    "joined": "precomputed",
    "max_broken_share": "max_broken_fraction",
    "negative_share": "negative_fraction",
    "validation_share": "validation_fraction",
}
"""Fields that workdirs of earlier versions call by another name."""


def load(path: str | os.PathLike) -> Pretrained:
    """Loads any model: what a run has trained, or what `interop.load` reads.

    Args:
      path: a workdir, for its newest checkpoint, `WORKDIR/checkpoints/STEP`, or a folder or file of
        `interop.load`.

    Returns:
      The model; `.model` and `.variables` are what flax needs, `.preprocessing` and `.tokenizer`
      tell how its inputs are made.

    Raises:
      FileNotFoundError: there is nothing at the path.
      MissingCheckpoint: the workdir has no complete checkpoint.
      UserError: the path is none of these, or damaged; see `interop.load`.
    """
    found = pathlib.Path(path).expanduser()
    if found.exists() and recognize_workdir(found):
        with interop.explained(found):
            return read_workdir(found)
    return interop.load(path)


def recognize_workdir(path: pathlib.Path) -> bool:
    """Tells whether a folder is a workdir, or `WORKDIR/checkpoints/STEP`."""
    return "objective" in read_json(_split_step(path)[0] / "config.json")


def _split_step(path: pathlib.Path) -> tuple[pathlib.Path, int | None]:
    """Returns the workdir that a path names, and the step if it names one."""
    if path.parent.name == FOLDER and path.name.isdecimal():
        return path.parent.parent, int(path.name)
    return path, None


def read_workdir(path: pathlib.Path) -> Pretrained:
    """Reads a checkpoint of a workdir: the average of parameters where one is kept.

    Args:
      path: a workdir, for its newest checkpoint, or `WORKDIR/checkpoints/STEP`.

    Raises:
      MissingCheckpoint: there is no complete checkpoint.
    """
    path, step = _split_step(path)
    config = _read_run(path)
    tokenizer = build.build_tokenizer(config)
    objective, _, found, _ = restore.load_weights(config, str(path), tokenizer, step)
    params = found["params"]
    weights = {"params": params["model"], **found["model_state"]}
    node = config.model.to_dict()
    if not node["text"] and not node["image_projection"]:  # the tower is all there is
        node, weights = node["image"], {kind: tree["image"] for kind, tree in weights.items()}
    size = build.example_batch(config, tokenizer)["image"].shape[-2]
    return Pretrained(
        node,
        jax.tree.map(np.asarray, weights),
        size,
        preprocessing=_find_preprocessing(config, size),
        tokenizer=config.tokenizer.to_dict(),
        temperature=_find_temperature(objective, params),
    )


def read_centers(path: pathlib.Path) -> Float[np.ndarray, "k d"]:
    """Reads the class centers of a checkpoint, by the paths that `read_workdir` takes."""
    path, step = _split_step(path)
    return restore.load_table(_read_run(path), str(path), "centers", step)


def _read_run(path: pathlib.Path) -> ConfigDict:
    """Reads the config of a workdir, for the devices that are here."""
    fields = tuple(sorted(check.FIELDS - check.ADDED))
    config = ConfigDict(_rename(read_config(path / "config.json", fields)))
    config.mesh = {"fsdp": 1}  # whatever it was trained on
    return config


def _rename(node: Any) -> Any:
    """Gives the fields of a config, at any depth, the names that they have now."""
    if not isinstance(node, dict):
        return node
    return {RENAMED.get(name, name): _rename(value) for name, value in node.items()}


def _find_temperature(objective: Objective, params: Params) -> float | None:
    """Returns what cosines are divided by; None where the objective compares none."""
    scale = objective.scale(params)
    return None if scale is None else float(1 / scale)


def _find_preprocessing(config: ConfigDict, size: int) -> Preprocessing:
    """Takes the first evaluator's image operations that other libraries can be told."""
    model = build_model(config)
    colors = tuple(model.image_mean), tuple(model.image_std)
    for evaluator in config.evaluators.values():
        try:
            return Preprocessing.from_transform(evaluator.transform, *colors)
        except ValueError:
            continue
    return Preprocessing(size, size, True, *colors)
