"""What a workdir holds after training: a model, its config and its class centers."""

import contextlib
import copy
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from flax import traverse_util
from jaxtyping import Float
from ml_collections import ConfigDict

from big_align.config import class_templates
from big_align.config.components.models import build_model
from big_align.config.components.transforms import check_repeatable
from big_align.config.config_files import CONFIG_JSON, read_config
from big_align.config.kept_files import check_vocabulary, use_kept_files
from big_align.core.errors import ConfigError, MissingCheckpoint, MissingFile, UserError
from big_align.core.nodes import Node
from big_align.core.types import ModelState, Objective, Params
from big_align.data.labels.classes import ClassList
from big_align.runs import build, dataset, restore
from big_align.training.saving.retention import BEST, Which
from big_align.training.saving.step_folders import FOLDER, find_folder
from big_align.weights import api
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Classifier, Pretrained, make_zeros
from big_align.weights.formats.text_files import read_json
from big_align.weights.hub.names import PREFIX, explain_absent, parse_name

BIAS = "bias"  # what an objective that decides about each pair adds to scaled cosines


def read_pretrained(
    path: str | os.PathLike, tokenizer: Mapping[str, Any] | None = None, averaged: bool = True
) -> Pretrained:
    """Loads any model: one that a run has trained, or one that `weights.read` reads.

    The path is a workdir, for its newest checkpoint, `WORKDIR/checkpoints/STEP`,
    `WORKDIR/checkpoints/best`, or what `weights.read` takes. A tokenizer, as in `config.tokenizer`,
    takes the place of the model's own. Of a run, the weights are `averaged` if it keeps averages.
    """
    if not isinstance(tokenizer, Mapping | None):
        raise UserError(f"tokenizer={tokenizer!r} is no mapping of settings, as in {{'name': ...}}")
    found = pathlib.Path(path).expanduser()
    if recognize_workdir(found):
        with api.explained(found):
            return TrainedRun(found, tokenizer).read_model(averaged)
    if parse_name(path) is None:
        if near := _explain_near(os.fspath(path), found):
            raise UserError(f"{path} {near}")
        if not found.exists() and (absent := explain_absent(os.fspath(path))):
            raise MissingFile(f"{path} {absent}")
    loaded = api.read(path)
    return loaded if tokenizer is None else dataclasses.replace(loaded, tokenizer=tokenizer)


def recognize_workdir(path: pathlib.Path) -> bool:
    """Returns whether a path is a workdir, or `WORKDIR/checkpoints/STEP`, or `.../best`.

    The checkpoints themselves may be elsewhere (`config.checkpoint.folder`).
    """
    return "objective" in read_json(split_step(path)[0] / CONFIG_JSON)


def _explain_near(given: str, path: pathlib.Path) -> str:
    """Returns what to give instead of a path that is nearly a model; "" if it is not."""
    if "://" in given:
        other = f"; a repository of Hugging Face's hub is {PREFIX}OWNER/NAME"
        told = "is an address; models are read from local folders: copy it to one first"
        return f"{told}{other}" if given.startswith("hf://") else told
    if path.suffix == ".zip":
        return "is compressed: unpack it, and give the folder"
    if path.name == CONFIG_JSON:
        return f"is the config of a model: give its folder, {path.parent}"
    if path.name == FOLDER and recognize_workdir(path.parent):
        return f"is the folder of the checkpoints of a run: give its workdir, {path.parent}"
    if (path / "state").is_dir() and (path / "record").is_dir():
        return (
            f"is a checkpoint without its run: it is read as WORKDIR/{FOLDER}/STEP, where "
            f"WORKDIR/{CONFIG_JSON} is the run's config"
        )
    if (path / FOLDER).is_dir() and not (path / CONFIG_JSON).exists():
        return f"is a workdir without its {CONFIG_JSON}: copy that of the run, too"
    return ""


def split_step(path: pathlib.Path) -> tuple[pathlib.Path, Which]:
    """Returns the workdir of a path, and the step or `BEST` if the path names a checkpoint."""
    if path.parent.name == FOLDER and (path.name.isdecimal() or path.name == BEST):
        return path.parent.parent, BEST if path.name == BEST else int(path.name)
    return path, None


class TrainedRun:
    """A checkpoint of a run, with the run's config for the devices and the files of this machine.

    The path is a workdir, for its newest checkpoint, `WORKDIR/checkpoints/STEP`, or `.../best`. A
    tokenizer is that of the run, if its files are elsewhere now.
    """

    def __init__(self, path: pathlib.Path, tokenizer: Mapping[str, Any] | None = None):
        self.folder, self.step = split_step(path)
        self.config = read_config(self.folder / CONFIG_JSON)
        self.config.mesh = {"fsdp": 1}  # whatever it was trained on
        use_kept_files(self.folder, self.config)
        if tokenizer is not None:
            self.config.tokenizer = dict(tokenizer)
        check_vocabulary(self.folder, self.config)

    def find_checkpoint(self) -> tuple[int, epath.Path]:
        """Returns the step of the checkpoint, and its folder."""
        saved = build.build_checkpointer(self.config, str(self.folder), read_only=True)
        with contextlib.closing(saved):
            step = saved.find(self.step)
        if step is None:
            raise MissingCheckpoint(f"no complete checkpoint in {self.folder}: train with it first")
        return step, self._folder_of(step)

    def _folder_of(self, step: int) -> epath.Path:
        return find_folder(str(self.folder), self.config.checkpoint.get("folder")) / str(step)

    def load_state(self, fields: Sequence[str], mesh: Node) -> tuple[Objective, Mapping[str, Any]]:
        """Restores fields of the training state onto a mesh, as in `config.mesh`."""
        config = copy.deepcopy(self.config)
        config.mesh = mesh
        made = build.build_tokenizer(config)
        loaded = restore.load_fields(config, str(self.folder), made, fields, step=self.step)
        return loaded[0], loaded[2]

    def read_model(self, averaged: bool = True) -> Pretrained:
        """Reads the model; with `averaged` its averaged parameters, if they are kept."""
        config, made = self.config, build.build_tokenizer(self.config)
        given = config, str(self.folder), made, self.step, averaged
        objective, _, found, step = restore.load_weights(*given)
        params, scale = found["params"], objective.scale(found["params"])
        model = _assemble(config, made, params, found["model_state"], self.folder)
        return dataclasses.replace(
            model,
            variables=jax.tree.map(np.asarray, model.variables),
            temperature=None if scale is None else float(1 / scale),
            bias=float(params[BIAS]) if has_bias(params) else None,
            checkpoint=str(self._folder_of(step)),
            classifier=self._export_classifier(objective, params),
            templates=class_templates.find_evaluated(config),
            trained_templates=class_templates.find_trained(config),
        )

    def _export_classifier(self, objective: Objective, params: Params) -> Classifier | None:
        """Returns the classifier that an objective has trained, with its classes, if it has one."""
        export = getattr(objective, "export_classifier", None)
        if export is None:
            return None
        arrays = {name: np.asarray(x) for name, x in export(params).items()}
        return Classifier(self._read_classes().names, **arrays)

    def _read_classes(self) -> ClassList | None:
        return dataset.all_classes(dataset.read_parts(self.config))

    def read_centers(self) -> Float[np.ndarray, "k d"]:
        """Reads the class centers; raises the errors of `restore.load_table`."""
        return restore.load_table(self.config, str(self.folder), "centers", self.step)

    def read_classifier(
        self, averaged: bool = True
    ) -> tuple[dict[str, np.ndarray], ClassList | None] | None:
        """Reads the objective's classifier, if it has one: its arrays by path, and its classes."""
        made = build.build_tokenizer(self.config)
        given = self.config, str(self.folder), made, self.step, averaged
        _, _, found, _ = restore.load_weights(*given)
        if "classifier" not in found["params"]:
            return None
        flat = traverse_util.flatten_dict({"classifier": found["params"]["classifier"]}, sep="/")
        return {name: np.asarray(x) for name, x in flat.items()}, self._read_classes()


def outline_model(
    config: ConfigDict, tokenizer: Any, params: Params, model_state: ModelState, workdir: str
) -> Pretrained:
    """Makes the model that a run will export, of the shapes of its arrays: see `tell_formats`."""
    model = _assemble(config, tokenizer, params, model_state, pathlib.Path(workdir))
    return dataclasses.replace(model, variables=make_zeros(model.variables))


def _assemble(
    config: ConfigDict,
    tokenizer: Any,
    params: Params,
    model_state: ModelState,
    folder: pathlib.Path,
) -> Pretrained:
    """Makes the model of a run from what its config says and the objective's parameters."""
    weights = {"params": params["model"], **model_state}
    node = _find_trained(config.model.to_dict(), params["model"])
    if not node["text"] and not node["image_projection"]:  # the tower is the whole model
        node, weights = node["image"], {kind: tree["image"] for kind, tree in weights.items()}
    height, width = build.example_batch(config, tokenizer)["image"].shape[-3:-1]
    return Pretrained(
        node,
        weights,
        height if height == width else (height, width),
        preprocessing=_find_preprocessing(config, (height, width), folder),
        tokenizer=config.tokenizer.to_dict(),
    )


def _find_trained(node: dict[str, Any], params: Params) -> dict[str, Any]:
    """Returns the part of a model that its objective trains: with labels alone, images have no text
    to be compared with, and so neither a text tower nor a projection."""
    if "image" not in params or "text" in params or not node["text"]:
        return node
    return node | {"text": None, "image_projection": "project_image" in params}


def has_bias(params: Params) -> bool:
    """Returns whether an objective adds one number to cosines; its `bias` may be something else."""
    return getattr(params.get(BIAS), "shape", None) == ()


def _find_preprocessing(
    config: ConfigDict, size: tuple[int, int], path: pathlib.Path
) -> Preprocessing:
    """Returns the image operations of the first evaluator, if possible one for other libraries."""
    model = build_model(config)
    colors = tuple(model.image_mean), tuple(model.image_std)
    transforms = [node.get("transform") for node in config.evaluators.values()]
    found = [Preprocessing.from_transform(text, *colors) for text in transforms if text]
    if found:
        return min(found, key=lambda seen: seen.operations is not None)
    trained = config.data.get("transform")
    with contextlib.suppress(ConfigError):  # it draws, so no image is prepared so in use
        check_repeatable(trained, "config.data.transform")
        return Preprocessing.from_transform(trained, *colors)
    square = f"resize_small({size[0]})|central_crop({size[0]})"
    guessed = square if size[0] == size[1] else f"resize{size}"
    guess = Preprocessing.from_transform(guessed, *colors)
    told = "%s: no evaluator says how images are prepared; this guess is used: %s"
    logging.warning(told, path, guess.transform)
    return guess
