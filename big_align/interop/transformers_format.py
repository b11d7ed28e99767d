"""Folders of transformers: `config.json`, `model.safetensors`, and what its processors read."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from big_align.errors import WeightsMismatch
from big_align.interop import architecture, preprocessing, text_files
from big_align.interop.architecture import Node
from big_align.interop.mapping import Rule
from big_align.interop.pretrained import Pretrained, assemble
from big_align.interop.tables import dual_encoder
from big_align.interop.transformers_configs import (
    FAMILIES,
    Family,
    read_fields,
    write_fields,
)
from big_align.interop.weight_files import Prefixed, open_weights


class Dual(NamedTuple):
    """A dual encoder of transformers.

    Args:
      image: model type of the image tower.
      text: model type of the text tower.
      table: where its arrays are.
      always: our arguments that follow from the class.
      scale: name of the array of the temperature, and how it is read and written.
      architecture: the class that opens the folder.
    """

    image: str
    text: str
    table: Sequence[Rule]
    always: Mapping[str, Any]
    scale: str
    architecture: str


DUALS = {
    "align": Dual(
        "align_vision_model",
        "align_text_model",
        dual_encoder.ALIGN,
        {"image_projection": False, "projection_bias": True},
        "temperature",
        "AlignModel",
    ),
    "clip": Dual(
        "clip_vision_model",
        "clip_text_model",
        dual_encoder.CLIP,
        {"image_projection": True, "projection_bias": False},
        "logit_scale",
        "CLIPModel",
    ),
}


def _read_scale(name: str, array: np.ndarray) -> float:
    return float(array) if name == "temperature" else math.exp(-float(array))


def _write_scale(name: str, temperature: float) -> np.ndarray:
    value = temperature if name == "temperature" else -math.log(temperature)
    return np.asarray(value, np.float32)


def recognise(path: pathlib.Path) -> bool:
    """Tells whether a folder is one of transformers."""
    config = path / "config.json"
    return config.is_file() and "model_type" in json.loads(config.read_text())


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder.

    Raises:
      WeightsMismatch: the model is of a kind that has no counterpart, or the weights are of
        another than the config describes; the message lists what differs.
      WeightFileError: a file is damaged or not what its name says.
    """
    config = json.loads((path / "config.json").read_text())
    model_type, where = config["model_type"], f"{path}/config.json"
    processor = path / "preprocessor_config.json"
    seen = None
    if processor.is_file():
        seen = preprocessing.read_processor(json.loads(processor.read_text()))
    size = config.get("vision_config", config).get("image_size") or (seen.size if seen else 224)
    more = dict(image_size=size, preprocessing=seen, where=str(path), source="transformers")
    with open_weights(path) as weights:
        if model_type in FAMILIES:
            family = FAMILIES[model_type]
            node = read_fields(family, config, where)
            return assemble(node, family.table, _strip(weights, family), **more)
        if model_type not in DUALS:
            known = ", ".join(sorted([*DUALS, *FAMILIES]))
            raise WeightsMismatch(f"{where}: model_type = {model_type!r}; known: {known}")
        dual = DUALS[model_type]
        node = _read_dual(dual, config, where)
        if seen:
            node |= {"image_mean": seen.mean, "image_std": seen.std}
        scale = weights[dual.scale] if dual.scale in weights else np.float32(1)
        return assemble(
            node,
            dual.table,
            weights,
            temperature=_read_scale(dual.scale, scale),
            tokenizer=text_files.read(path, node["text"]["max_length"]),
            **more,
        )


def _strip(weights: Mapping[str, np.ndarray], family: Family) -> Mapping[str, np.ndarray]:
    """Leaves out what stands before every name in files of models with a head."""
    first = next(rule.theirs for rule in family.table if "{" not in rule.theirs)
    for base in family.bases:
        if any(name.startswith(base + first) for name in weights):
            return Prefixed(weights, base)
    return weights


def _read_dual(dual: Dual, config: Mapping[str, Any], where: str) -> dict[str, Any]:
    parts = {}
    for part, theirs in (("image", "vision_config"), ("text", "text_config")):
        family = FAMILIES[getattr(dual, part)]
        parts[part] = read_fields(family, config.get(theirs) or {}, f"{where} {theirs}")
    size = {"embedding_dim": config.get("projection_dim", 512)}
    return parts | size | dict(dual.always)


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that transformers opens.

    Returns:
      By file name: a dictionary for JSON, text, or arrays of weights (or what makes them).

    Raises:
      WeightsMismatch: no class of transformers is such a model.
    """
    make = _write_dual if pretrained.kind == "dual" else _write_tower
    config, table, fillers, scale = make(pretrained)
    entries = pretrained.entries(table)
    weights = architecture.give(entries, pretrained.flat)
    # The temperature may have been trained since it was kept aside.
    kept = pretrained.kept_for("transformers")
    arrays = fillers | kept | weights | scale
    files = {"config.json": config, "model.safetensors": arrays}
    model_type = config["model_type"]
    if pretrained.preprocessing and model_type in preprocessing.PROCESSORS:
        processor = preprocessing.write_processor(model_type, pretrained.preprocessing)
        files["preprocessor_config.json"] = processor
    if pretrained.tokenizer:
        files |= text_files.write(pretrained.tokenizer, model_type)
    return files


def _write_tower(pretrained: Pretrained) -> tuple[dict, Sequence[Rule], dict, dict]:
    names = [name for name in FAMILIES if not name.startswith("align")]
    name, config = _describe(pretrained.model, names, pretrained.image_size)
    return config, FAMILIES[name].table, _fillers(FAMILIES[name], config, ""), {}


def _write_dual(pretrained: Pretrained) -> tuple[dict, Sequence[Rule], dict, dict]:
    model, faults = pretrained.model, []
    for model_type, dual in DUALS.items():
        try:
            for name, value in dual.always.items():
                if getattr(model, name) != value:
                    raise WeightsMismatch(f"{dual.architecture} needs {name}={value}")
            _, image = _describe(model.image, [dual.image], pretrained.image_size)
            _, text = _describe(model.text, [dual.text], None)
        except WeightsMismatch as error:
            faults.append(f"{dual.architecture}: {error}")
            continue
        config = {
            "architectures": [dual.architecture],
            "model_type": model_type,
            "dtype": "float32",
            "projection_dim": model.embedding_dim or model.image.output_dim,
            "vision_config": image,
            "text_config": text,
        }
        temperature = 1.0 if pretrained.temperature is None else pretrained.temperature
        fillers = _fillers(FAMILIES[dual.text], text, "text_model.")
        scale = {dual.scale: _write_scale(dual.scale, temperature)}
        return config, dual.table, fillers, scale
    raise WeightsMismatch(
        "no class of transformers is such a dual encoder; --format=big_align keeps every model\n"
        + "\n".join(f"  {fault}" for fault in faults)
    )


def _describe(
    tower: nn.Module, names: Sequence[str], image_size: int | None
) -> tuple[str, dict[str, Any]]:
    """Returns the first of some model types that fits a tower, and its config."""
    settings, faults = architecture.settings(tower), []
    for name in names:
        family = FAMILIES[name]
        if family.tower != settings["name"]:
            continue
        try:
            config = write_fields(family, settings)
        except WeightsMismatch as error:
            faults.append(str(error))
            continue
        return name, config | ({"image_size": image_size} if image_size else {})
    reason = "; ".join(faults) or "transformers has no such model"
    raise WeightsMismatch(f"the tower {settings['name']!r} cannot be written: {reason}")


def _fillers(family: Family, config: Mapping[str, Any], prefix: str) -> dict[str, np.ndarray]:
    """Makes what a class of theirs has and our tower lacks: a pooler that passes everything on."""
    if not family.pooler:
        return {}
    width = config["hidden_size"]
    return {
        f"{prefix}pooler.dense.weight": np.eye(width, dtype=np.float32),
        f"{prefix}pooler.dense.bias": np.zeros(width, np.float32),
    }
