"""Dual encoders of open_clip: folders with `open_clip_config.json`, and bare state dicts."""

import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from absl import logging

from big_align.weights.arrays.weight_files import choose_file, open_weights
from big_align.weights.formats import architecture, text_files
from big_align.weights.formats.open_clip_configs import (
    find_text,
    infer_config,
    read_config,
    write_config,
)
from big_align.weights.formats.preprocessing import CLIP_MEAN, CLIP_STD, FILTERS, Preprocessing
from big_align.weights.formats.pretrained import Pretrained, assemble, read_scalar, read_temperature
from big_align.weights.tables import dual_encoder
from big_align.weights.tables.mapping import Rule

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
SCALE, BIAS = "logit_scale", "logit_bias"
UNUSED = (SCALE, BIAS, "attn_mask", "input_resolution", "context_length", "vocab_size")
"""Arrays outside the towers: scalars, buffers, and sizes in the files of OpenAI."""


def _table(text: str) -> list[Rule]:
    """Returns the table of names, with the prefix for those of the text tower."""
    return [
        rule if rule.theirs.startswith("visual.") else rule._replace(theirs=text + rule.theirs)
        for rule in dual_encoder.OPEN_CLIP
    ]


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a folder or a file of weights is one of open_clip."""
    own = {"visual.conv1.weight", f"{find_text(names)}ln_final.weight"}
    return own <= set(names) or _find_config(path) is not None


def list_files(path: pathlib.Path, names: Collection[str]) -> list[str]:
    """Lists what `read` reads, of the files that a folder has or a repository would give it."""
    weights = [WEIGHTS] if WEIGHTS in names else choose_file(names)
    return [CONFIG, "config.json", *text_files.FILES, *weights]


def _find_config(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns `model_cfg` and `preprocess_cfg`, or None if the folder is not open_clip's."""
    for name in (CONFIG, "config.json"):
        config = text_files.read_json(folder / name)
        config = config if "model_cfg" in config else {"model_cfg": config}
        if "vision_cfg" in config["model_cfg"]:
            return config
    return None


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder, or a state dict by itself.

    A state dict does not determine everything. By itself it is read with heads that are 64 wide,
    the exact GELU and images prepared as for OpenAI's CLIP: these are open_clip's conventions, and
    not those of OpenAI's own weights, whose activation is quick-GELU.
    """
    # Published folders may also hold the same model with the names of transformers.
    with open_weights(path / WEIGHTS if (path / WEIGHTS).is_file() else path) as weights:
        config = _find_config(path) if path.is_dir() else None
        if config is None:
            shapes = {name: array.shape for name, array in weights.arrays.items()}
            config = {"model_cfg": infer_config(shapes, str(path))}
        node, size = read_config(config["model_cfg"], str(path))
        told = config.get("preprocess_cfg") or {}
        mode = told.get("resize_mode") or "shortest"
        mean, std = (tuple(told.get(k) or v) for k, v in (("mean", CLIP_MEAN), ("std", CLIP_STD)))
        node |= {"image_mean": mean, "image_std": std}
        method = told.get("interpolation")
        method = method if method in FILTERS else "bicubic"
        seen = Preprocessing(size, size, mode == "shortest", mean, std, method, half_to_even=True)
        return assemble(
            node,
            _table(find_text(weights)),
            weights,
            image_size=size,
            where=str(path),
            source="open_clip",
            unused=UNUSED,
            preprocessing=None if mode == "longest" else seen,  # ours does not pad images
            tokenizer=text_files.read(path, node["text"]["max_length"]) if path.is_dir() else None,
            temperature=read_temperature(weights),
            bias=read_scalar(weights, BIAS),
        )


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that open_clip opens as "local-dir:FOLDER"."""
    model_cfg = write_config(pretrained)
    temperature = 1.0 if pretrained.temperature is None else pretrained.temperature
    kept = pretrained.kept_for("open_clip")
    scale = np.full(np.shape(kept.get(SCALE, 0.0)), -math.log(temperature), np.float32)
    weights = {SCALE: scale}
    if scale.ndim:
        model_cfg["nonscalar_logit_scale"] = True
    if pretrained.bias is not None:
        weights[BIAS] = np.full(np.shape(kept.get(BIAS, 0.0)), pretrained.bias, np.float32)
        model_cfg["init_logit_bias"] = pretrained.bias
    weights |= architecture.give(pretrained.entries(_table("")), pretrained.flat)

    tokenizer, files = pretrained.tokenizer, {}
    if tokenizer:
        files = text_files.write(tokenizer, "clip")
        model_cfg["text_cfg"] |= _describe_tokenizer(tokenizer)
    config = {"model_cfg": model_cfg, "preprocess_cfg": _write_preprocessing(pretrained)}
    return files | {CONFIG: config, WEIGHTS: weights}


def _describe_tokenizer(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `text_cfg` says about a tokenizer that is not CLIP's, open_clip's own."""
    if tokenizer["name"] == "wordpiece":
        # For a local folder any name means the files next to the config.
        end = text_files.find_end(tokenizer)
        return {"hf_tokenizer_name": "this folder", "pool_type": "eos", "eos_id": end}
    if tokenizer["name"] != "clip":
        logging.warning("open_clip has no tokenizer %r and will take CLIP's", tokenizer["name"])
    return {}


def _write_preprocessing(pretrained: Pretrained) -> dict[str, Any]:
    seen, size, model = pretrained.preprocessing, pretrained.image_size, pretrained.model
    if seen and (seen.size, seen.resize) != (size, size):
        logging.warning(
            "open_clip resizes images to the size that the model sees, %d; it cannot express %s",
            size,
            seen.transform,
        )
    return {
        "size": size,
        "mode": "RGB",
        "mean": list(seen.mean if seen else model.image_mean),
        "std": list(seen.std if seen else model.image_std),
        "interpolation": seen.method if seen else "bicubic",
        "resize_mode": "squash" if seen and not seen.keep_aspect else "shortest",
    }
