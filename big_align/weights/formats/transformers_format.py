"""Folders of transformers: `config.json`, `model.safetensors`, and what its processors read."""

import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from absl import logging

from big_align.config.components import tables
from big_align.core.errors import WeightsMismatch
from big_align.weights.arrays.weight_files import WeightFile, choose_file, open_weights
from big_align.weights.formats import architecture, preprocessing, sentence_transformers, text_files
from big_align.weights.formats.preprocessing import CLIP_MEAN, CLIP_STD, HALF
from big_align.weights.formats.pretrained import Pretrained, assemble, read_temperature
from big_align.weights.formats.transformers_configs import (
    TransformersFamily,
    check_windows,
    read_edge,
    read_fields,
    write_fields,
)
from big_align.weights.formats.transformers_families import FAMILIES, find_odd_blocks
from big_align.weights.tables import dual_encoder
from big_align.weights.tables.mapping import Rule, prefix_table

PROCESSORS = "processor_config.json", "preprocessor_config.json"


class Dual(NamedTuple):
    """A dual encoder of transformers."""

    image: str  # model type of the image tower
    text: str  # model type of the text tower
    table: Sequence[Rule]
    always: Mapping[str, Any]  # our arguments that follow from the class
    scale: str  # name of the temperature's array, which says how it is stored
    architecture: str  # the class that opens the folder
    mean: tuple[float, float, float]  # of its images, if the folder does not say it
    std: tuple[float, float, float]


DUALS = {
    "align": Dual(
        "align_vision_model",
        "align_text_model",
        dual_encoder.ALIGN,
        {"image_projection": False, "text_projection": True, "projection_bias": True},
        "temperature",
        "AlignModel",
        HALF,
        HALF,
    ),
    "clip": Dual(
        "clip_vision_model",
        "clip_text_model",
        dual_encoder.CLIP,
        {"image_projection": True, "text_projection": True, "projection_bias": False},
        "logit_scale",
        "CLIPModel",
        CLIP_MEAN,
        CLIP_STD,
    ),
}


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a folder is one of transformers."""
    return "model_type" in text_files.read_json(path / "config.json")


def list_files(path: pathlib.Path, names: Collection[str]) -> list[str]:
    """Lists what `read` reads, of the files that a folder has or a repository would give it."""
    listed = "config.json", *PROCESSORS, *text_files.FILES
    pooled = sentence_transformers.list_files(names)
    return [*listed, *pooled, *choose_file(names)]


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder; an error lists what the model lacks, or has and should not."""
    config = text_files.read_json(path / "config.json")
    model_type, where = config["model_type"], f"{path}/config.json"
    if model_type not in {*FAMILIES, *DUALS}:
        known = ", ".join(sorted([*DUALS, *FAMILIES]))
        raise WeightsMismatch(f"{where}: model_type = {model_type!r}; known: {known}")
    # transformers 5 puts the image processor of a dual encoder into another file.
    newer, older = (text_files.read_json(path / name) for name in PROCESSORS)
    processor = newer.get("image_processor") or older
    seen = preprocessing.read_processor(processor, str(path))
    more = dict(preprocessing=seen, where=str(path), source="transformers")
    if model_type in DUALS:
        return _read_dual(path, DUALS[model_type], config, more)
    family = FAMILIES[model_type]
    node = read_fields(family, config, where)
    more["image_size"] = None
    if family.tower in tables.IMAGE_TOWERS:
        more["image_size"] = _read_size(config, family, seen, where)
        _check_padding(node, config, more["image_size"])
    else:
        pool = sentence_transformers.read_pool(path, "pool" in node)
        node |= {"pool": pool} if pool else {}
        length = sentence_transformers.read_length(path) or node["max_length"]
        more["tokenizer"] = text_files.read(path, min(length, node["max_length"]))
    with open_weights(path) as weights:
        _rename_old_norms(weights)
        _strip(weights, family)
        return assemble(node, family.table, weights, **more)


def _read_dual(
    path: pathlib.Path, dual: Dual, config: Mapping[str, Any], more: dict[str, Any]
) -> Pretrained:
    where, seen, node = f"{path}/config.json", more["preprocessing"], {}
    for part, theirs in (("image", "vision_config"), ("text", "text_config")):
        family, given = FAMILIES[getattr(dual, part)], config.get(theirs) or {}
        if not isinstance(given, Mapping):
            raise WeightsMismatch(f"{where}: {theirs} = {given!r} is not an object")
        node[part] = read_fields(family, given, f"{where}: {theirs}")
        if part == "image":
            size = _read_size(given, family, seen, where)
            _check_padding(node[part], given, size)
    node |= {"embedding_dim": config.get("projection_dim", 512)} | dict(dual.always)
    mean, std = (seen.mean, seen.std) if seen else (dual.mean, dual.std)
    with open_weights(path) as weights:
        _rename_old_norms(weights)
        return assemble(
            node | {"image_mean": mean, "image_std": std},
            dual.table,
            weights,
            image_size=size,
            temperature=read_temperature(weights, dual.scale),
            tokenizer=text_files.read(path, node["text"]["max_length"]),
            **more,
        )


def _read_size(config: Mapping[str, Any], family: TransformersFamily, seen: Any, where: str) -> int:
    """Returns the edge of images; if weights fit any size, the one that the processor makes."""
    given = config.get("image_size")
    if seen and (given is None or family.tower == "efficientnet"):
        return seen.size
    return 224 if given is None else read_edge(given, f"{where}: image_size")


def _check_padding(node: Mapping[str, Any], config: Mapping[str, Any], size: int) -> None:
    """Warns if an EfficientNet of theirs pads images differently from ours."""
    if node["name"] != "efficientnet":
        return
    if find_odd_blocks(node["depth"], size) != (config.get("depthwise_padding") or []):
        logging.warning(
            "at %d pixels some edges are odd, where big_align and transformers' EfficientNet pad "
            "differently: outputs will not be exactly the same; a multiple of 32 avoids it",
            size,
        )


def _rename_old_norms(weights: WeightFile) -> None:
    """Renames the norms in files that come from TensorFlow, such as BERT's published ones."""
    old = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

    def rename(name: str) -> str:
        return next((name.removesuffix(k) + v for k, v in old.items() if name.endswith(k)), name)

    weights.arrays = {rename(name): array for name, array in weights.arrays.items()}


def _strip(weights: WeightFile, family: TransformersFamily) -> None:
    """Removes the prefix of all names in files of models with a head, and the head."""
    first = next(rule.theirs for rule in family.table if "{" not in rule.theirs)
    for base in family.bases:
        if any(name.startswith(base + first) for name in weights):
            below = {k: array for k, array in weights.arrays.items() if k.startswith(base)}
            weights.arrays = {k.removeprefix(base): array for k, array in below.items()}
            return


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that transformers opens."""
    make = _write_dual if pretrained.kind == "dual" else _write_tower
    config, table, fillers, scale = make(pretrained)
    weights = architecture.give(pretrained.entries(table), pretrained.flat)
    # The temperature may have been trained since it was kept.
    arrays = fillers | pretrained.kept_for("transformers") | weights | scale
    files = {"config.json": config, "model.safetensors": arrays}
    model_type = config["model_type"]
    if pretrained.preprocessing:
        processor = preprocessing.write_processor(model_type, pretrained.preprocessing)
        files["preprocessor_config.json"] = processor
    if pretrained.tokenizer:
        files |= text_files.write(pretrained.tokenizer, model_type)
    if _pools_mean(pretrained):
        length = (pretrained.tokenizer or {}).get("length")
        files |= sentence_transformers.write("mean", pretrained.model.output_dim, length)
    return files


def _pools_mean(pretrained: Pretrained) -> bool:
    """Returns whether it is a text tower whose mean sentence-transformers takes."""
    return pretrained.kind == "text" and getattr(pretrained.model, "pool", None) == "mean"


def _write_tower(pretrained: Pretrained) -> tuple[dict, Sequence[Rule], dict, dict]:
    names = [name for name in FAMILIES if not name.startswith("align")]
    # BertModel returns all tokens; files of their own say how they are pooled.
    model = pretrained.model.clone(pool="cls") if _pools_mean(pretrained) else pretrained.model
    name, config = describe(model, names, pretrained.image_size)
    _tell_end(config, pretrained.tokenizer)
    family = FAMILIES[name]
    table = prefix_table(family.table, "", family.prefix)
    return config, table, _fillers(family, config, family.prefix), {}


def _write_dual(pretrained: Pretrained) -> tuple[dict, Sequence[Rule], dict, dict]:
    faults = []
    for model_type, dual in DUALS.items():
        try:
            image, text = _describe_dual(dual, pretrained)
        except WeightsMismatch as error:
            faults.append(f"{dual.architecture}: {error}")
            continue
        _tell_end(text, pretrained.tokenizer)
        config = {
            "architectures": [dual.architecture],
            "model_type": model_type,
            "dtype": "float32",
            "projection_dim": pretrained.model.embedding_dim or pretrained.model.image.output_dim,
            "vision_config": image,
            "text_config": text,
        }
        if pretrained.bias is not None:
            told = "%s has no bias for pairs: %g is left out; --format=big_align keeps it"
            logging.warning(told, dual.architecture, pretrained.bias)
        temperature = 1.0 if pretrained.temperature is None else pretrained.temperature
        fillers = _fillers(FAMILIES[dual.text], text, "text_model.")
        stored = temperature if dual.scale == "temperature" else -math.log(temperature)
        return config, dual.table, fillers, {dual.scale: np.asarray(stored, np.float32)}
    raise WeightsMismatch(
        "no class of transformers is such a dual encoder, but one may be like a tower alone "
        "(--part=image, --part=text):\n" + "\n".join(f"  {fault}" for fault in faults)
    )


def _describe_dual(dual: Dual, pretrained: Pretrained) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the configs of both towers, or raises `WeightsMismatch` with all that differs."""
    model = pretrained.model
    faults = [
        f"it needs {name}={value!r}, not {getattr(model, name)!r}"
        for name, value in dual.always.items()
        if getattr(model, name) != value
    ]
    towers = (model.image, dual.image, pretrained.image_size), (model.text, dual.text, None)
    configs = []
    for tower, name, size in towers:
        try:
            configs.append(describe(tower, [name], size)[1])
        except WeightsMismatch as error:
            faults.append(str(error))
    if faults:
        raise WeightsMismatch("; ".join(faults))
    return configs[0], configs[1]


def describe(
    tower: nn.Module, names: Sequence[str], image_size: int | None
) -> tuple[str, dict[str, Any]]:
    """Returns the first of several model types that fits a tower, and its config."""
    settings, faults = architecture.settings(tower), []
    for name in names:
        family = FAMILIES[name]
        if family.tower != settings["name"]:
            continue
        try:
            config = write_fields(family, settings | {"image_size": image_size})
        except WeightsMismatch as error:
            faults.append(str(error))
            continue
        if image_size:
            _check_padding(settings, config, image_size)
            check_windows(settings, image_size)
        return name, config | ({"image_size": image_size} if image_size else {})
    known = ", ".join(sorted({FAMILIES[name].tower for name in names}))
    reason = "; ".join(faults) or f"it is none of {known}"
    raise WeightsMismatch(f"the tower {settings['name']!r} cannot be written: {reason}")


def _fillers(
    family: TransformersFamily, config: Mapping[str, Any], prefix: str
) -> dict[str, np.ndarray]:
    """Makes what a class of theirs has and our tower lacks: a pooler that changes nothing."""
    if not family.pooler:
        return {}
    width = config["hidden_size"]
    return {
        f"{prefix}pooler.dense.weight": np.eye(width, dtype=np.float32),
        f"{prefix}pooler.dense.bias": np.zeros(width, np.float32),
    }


def _tell_end(config: dict[str, Any], tokenizer: Mapping[str, Any] | None) -> None:
    """Sets the token that CLIP's text tower is to pool: ours takes the last one of a text."""
    if config["model_type"] != "clip_text_model" or tokenizer is None:
        return
    end = text_files.find_end(tokenizer)
    # transformers reads a 2 as a mistake in old configs and takes the largest id instead.
    if end in (None, 2):
        logging.warning(
            "transformers' CLIP pools a text at its end-of-text token, which the tokenizer %r does "
            "not have: its embeddings of texts will differ",
            tokenizer["name"],
        )
    else:
        config["eos_token_id"] = end
