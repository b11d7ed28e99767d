"""Dual encoders of open_clip: folders with `open_clip_config.json`, and bare state dicts."""

import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from absl import logging

from big_align.core.errors import UserError, WeightsMismatch
from big_align.weights.arrays.weight_files import choose_file, open_weights
from big_align.weights.formats import architecture, open_clip_towers, text_files
from big_align.weights.formats.open_clip_configs import TEXT, TowerWritten, find_text, infer_config
from big_align.weights.formats.preprocessing import CLIP_MEAN, CLIP_STD, FILTERS, Preprocessing
from big_align.weights.formats.pretrained import Pretrained, assemble, read_scalar, read_temperature
from big_align.weights.tables.mapping import Rule

CONFIG = "open_clip_config.json"
WEIGHTS = "open_clip_model.safetensors"
SCALE, BIAS = "logit_scale", "logit_bias"
METHODS = ("bicubic", "bilinear")
"""The resampling filters that it has."""

UNUSED = (
    *(SCALE, BIAS, "attn_mask", "input_resolution", "context_length", "vocab_size"),
    *("num_batches_tracked", "relative_position_index", "position_ids"),
)
"""Arrays outside the towers: scalars, buffers, and sizes in the files of OpenAI."""


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a folder or a file of weights is one of open_clip."""
    own = {"visual.conv1.weight", f"{find_text(names)}ln_final.weight"}
    trunk = any(name.startswith(open_clip_towers.TRUNK) for name in names)
    return trunk or own <= set(names) or _find_config(path) is not None


def list_files(path: pathlib.Path, names: Collection[str]) -> list[str]:
    """Lists what `read` reads, of the files that a folder has or a repository would give it."""
    weights = [WEIGHTS] if WEIGHTS in names else choose_file(names)
    towers = [f"{part}/config.json" for part in open_clip_towers.FOLDERS]
    return [CONFIG, "config.json", *towers, *text_files.FILES, *weights]


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
        shapes = {name: array.shape for name, array in weights.arrays.items()}
        config = config or {"model_cfg": infer_config(shapes, str(path))}
        node, size, table = _read_model(config["model_cfg"], shapes, path)
        told = config.get("preprocess_cfg") or {}
        mode = told.get("resize_mode") or "shortest"
        mean, std = (tuple(told.get(k) or v) for k, v in (("mean", CLIP_MEAN), ("std", CLIP_STD)))
        node |= {"image_mean": mean, "image_std": std}
        method = told.get("interpolation")
        method = method if method in FILTERS else "bicubic"
        seen = Preprocessing(size, size, mode == "shortest", mean, std, method, half_to_even=True)
        context = config["model_cfg"]["text_cfg"].get("context_length", TEXT["context_length"])
        length = min(context, node["text"]["max_length"])
        return assemble(
            node,
            table,
            weights,
            image_size=size,
            where=str(path),
            source="open_clip",
            unused=UNUSED,
            preprocessing=None if mode == "longest" else seen,  # ours does not pad images
            tokenizer=text_files.read(path, length) if path.is_dir() else None,
            temperature=read_temperature(weights),
            bias=read_scalar(weights, BIAS),
        )


def _read_model(
    config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], path: pathlib.Path
) -> tuple[dict[str, Any], int | None, list[Rule]]:
    """Turns `model_cfg` into a node, the size of images and the table of names."""
    for name in ("embed_dim", "vision_cfg", "text_cfg"):
        if name not in config:
            raise WeightsMismatch(f"{path}: {name} is missing in the config")
    if "multimodal_cfg" in config:
        raise WeightsMismatch(f"{path}: multimodal_cfg (CoCa) has no counterpart")
    config = {**config, **{part: config[part] or {} for part in ("vision_cfg", "text_cfg")}}
    image = open_clip_towers.read_image(config, shapes, path, str(path))
    text = open_clip_towers.read_text(config, shapes, path, str(path))
    biases = {tower.bias for tower in (image, text)} - {None}
    if len(biases) > 1:
        raise WeightsMismatch(
            f"{path}: one projection has a bias and the other has none (timm_proj_bias, "
            f"proj_bias); only both or none can be read"
        )
    node = {"image": image.node, "text": text.node, "embedding_dim": config["embed_dim"]}
    node |= {"image_projection": image.bias is not None, "text_projection": text.bias is not None}
    return node | {"projection_bias": True in biases}, image.size, [*image.table, *text.table]


def _write_towers(pretrained: Pretrained) -> tuple[TowerWritten, TowerWritten]:
    """Describes both towers; an error lists all that open_clip does not have."""
    if pretrained.kind != "dual":
        raise WeightsMismatch(
            f"open_clip has dual encoders only, and this is a tower for {pretrained.kind}s; "
            f"--format=timm or --format=transformers may have it"
        )
    writers = {"image": open_clip_towers.write_image, "text": open_clip_towers.write_text}
    towers, faults = [], []
    for part, write_tower in writers.items():
        try:
            towers.append(write_tower(pretrained))
        except WeightsMismatch as error:
            faults.append(f"the {part} tower: {error}")
    if {True, False} <= {tower.quick_gelu for tower in towers}:
        faults.append("both towers must have activation='quick_gelu', or neither")
    if faults:
        raise WeightsMismatch(
            "open_clip has no such dual encoder:\n" + "\n".join(f"  {fault}" for fault in faults)
        )
    return towers[0], towers[1]


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that open_clip opens as "local-dir:FOLDER"."""
    image, text = _write_towers(pretrained)
    model, tokenizer = pretrained.model, pretrained.tokenizer
    temperature = 1.0 if pretrained.temperature is None else pretrained.temperature
    kept = pretrained.kept_for("open_clip")
    scale = np.full(np.shape(kept.get(SCALE, 0.0)), -math.log(temperature), np.float32)
    weights, more = {SCALE: scale}, {}
    if scale.ndim:
        more["nonscalar_logit_scale"] = True
    if pretrained.bias is not None:
        weights[BIAS] = np.full(np.shape(kept.get(BIAS, 0.0)), pretrained.bias, np.float32)
        more["init_logit_bias"] = pretrained.bias
    table = [*image.table, *text.table]
    weights |= architecture.give(pretrained.entries(table), pretrained.flat)
    files = {**image.files, **text.files}
    if tokenizer:
        files |= text_files.write(tokenizer, "clip")
        text.config.update(_describe_tokenizer(tokenizer, text.quick_gelu is not None))
    preprocessing = _write_preprocessing(pretrained, image.config["image_size"])
    quick = bool(image.quick_gelu or text.quick_gelu)

    def make_config(folder: pathlib.Path) -> dict[str, Any]:
        parts = {"vision_cfg": image.config, "text_cfg": text.config}
        for part, config in parts.items():
            filled = {k: v(folder) if callable(v) else v for k, v in config.items()}
            parts[part] = filled
        dim = model.embedding_dim or model.image.output_dim
        model_cfg = {"embed_dim": dim, "quick_gelu": quick, **parts, **more}
        return {"model_cfg": model_cfg, "preprocess_cfg": preprocessing}

    return files | {CONFIG: make_config, WEIGHTS: weights}


def _describe_tokenizer(tokenizer: Mapping[str, Any], own: bool) -> dict[str, Any]:
    """Returns what `text_cfg` says about a tokenizer that is not CLIP's, open_clip's own.

    A text tower of its own is also told where to pool.
    """
    if tokenizer["name"] == "clip":
        return {}
    if tokenizer["name"] not in text_files.DEFAULTS:
        logging.warning("open_clip has no tokenizer %r and will take CLIP's", tokenizer["name"])
        return {}
    # For a local folder any name means the files next to the config.
    pooled = {"pool_type": "eos", "eos_id": text_files.find_end(tokenizer)} if own else {}
    return {"hf_tokenizer_name": "this folder"} | pooled


def _write_preprocessing(pretrained: Pretrained, size: int) -> dict[str, Any]:
    seen, model = pretrained.preprocessing, pretrained.model
    if seen and seen.method not in METHODS:
        raise UserError(
            f"open_clip resizes images by {' or '.join(METHODS)}, and the model's are resized by "
            f"{seen.method}; big_align.load(..., transform=...) replaces it"
        )
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
