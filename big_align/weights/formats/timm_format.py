"""Image towers of timm: folders as on the Hugging Face hub, and state dicts by themselves."""

import math
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from big_align.core.errors import WeightsMismatch
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD
from big_align.weights.arrays.weight_files import WeightFile, choose_file, open_weights
from big_align.weights.formats import architecture
from big_align.weights.formats.preprocessing import FILTERS, Preprocessing
from big_align.weights.formats.pretrained import Pretrained, assemble
from big_align.weights.formats.text_files import read_json
from big_align.weights.formats.timm_models import (
    COMMON,
    FAMILIES,
    NOTHING_STATED,
    SIZE,
    TimmConfig,
    TimmFamily,
)
from big_align.weights.tables.swin import ORIGINAL_SWIN

COUNTER = "num_batches_tracked"
BUFFERS = (COUNTER, "relative_position_index", "attn_mask")
CROP = 0.875
"""The fraction of an edge that timm's crop keeps if a config leaves it out."""


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a folder or a file of weights is one of timm."""
    return any(family.mark in names for family in FAMILIES) or read_config(path) is not None


def list_files(path: pathlib.Path, names: Collection[str]) -> list[str]:
    """Lists what `read` reads, of the files that a folder has or a repository would give it."""
    return ["config.json", *choose_file(names)]


def read_config(folder: pathlib.Path) -> dict[str, Any] | None:
    """Returns `config.json`, or None if the folder is not timm's."""
    config = read_json(folder / "config.json")
    if not isinstance(config.get("architecture"), str):
        return None
    # Old folders have the fields of `pretrained_cfg` beside the others.
    return config if "pretrained_cfg" in config else {**config, "pretrained_cfg": config}


def read(path: pathlib.Path) -> Pretrained:
    """Reads a folder, or a state dict by itself.

    The architecture follows from names and shapes. What they do not determine follows from the name
    of the architecture and `model_args`; a state dict by itself is taken for timm's default. Then
    heads of a ViT are 64 wide (wider in the four largest), its activation is the exact GELU, and
    its epsilon 1e-5 if `norm_pre` indicates CLIP's and 1e-6 otherwise; an EfficientNet is one of
    TensorFlow's (`tf_`), whose padding and epsilon differ from those of timm's own.
    """
    config = read_config(path) if path.is_dir() else None
    stated, seen = NOTHING_STATED, None
    if config:
        name, arguments = config["architecture"].split(".")[0], config.get("model_args") or {}
        size = _read_size(config["pretrained_cfg"], arguments, str(path))
        stated = TimmConfig(name, arguments, size)
        seen = _read_preprocessing(config["pretrained_cfg"], size)
    with open_weights(path) as weights:
        return read_state_dict(weights, str(path), stated, seen)


def read_state_dict(
    weights: WeightFile,
    where: str,
    stated: TimmConfig = NOTHING_STATED,
    preprocessing: Preprocessing | None = None,
) -> Pretrained:
    """Reads the tower that a state dict's names and shapes, and what a config states, describe."""
    shapes = {name: array.shape for name, array in weights.arrays.items()}
    family, node, size = read_tower(shapes, stated, where)
    names = {family.classifier, family.classifier.split(".")[0]}  # also in original files
    heads = [f"{name}.{leaf}" for name in names for leaf in ("weight", "bias")]
    original = "layers.0.downsample.norm.weight" in shapes
    return assemble(
        node,
        ORIGINAL_SWIN if original else family.table,
        weights,
        image_size=size,
        where=where,
        source="timm",
        unused=(*BUFFERS, *heads),
        preprocessing=preprocessing,
    )


def read_tower(
    shapes: Mapping[str, Any], stated: TimmConfig, where: str
) -> tuple[TimmFamily, dict[str, Any], int]:
    """Returns what the names and shapes of arrays are: the family, the node, the size of images."""
    family = _find_family(shapes, stated, where)
    try:
        node, size = family.read(shapes, stated)
    except KeyError as error:
        raise WeightsMismatch(
            f"{where} looks like a {family.tower} of timm, but {error.args[0]} is missing"
        ) from error
    except WeightsMismatch as error:
        raise WeightsMismatch(f"{where}: {error}") from error
    return family, {"name": family.tower} | node, size


def _find_family(shapes: Mapping[str, Any], stated: TimmConfig, where: str) -> TimmFamily:
    family = next((f for f in FAMILIES if f.mark in shapes), None)
    known = ", ".join(f.tower for f in FAMILIES)
    if family is None:
        raise WeightsMismatch(f"{where} has no arrays with timm's names of a {known}")
    if stated.name and not re.fullmatch(family.names, stated.name):
        raise WeightsMismatch(
            f"{where}: the architecture {stated.name!r} has no counterpart; of the kind "
            f"{family.tower} those named {family.names} have one"
        )
    strange = set(stated.arguments) - {*COMMON, *family.arguments}
    if strange:
        raise WeightsMismatch(
            f"{where}: model_args has {', '.join(sorted(strange))}, which our {family.tower} does "
            f"not have; known: {', '.join(sorted({*COMMON, *family.arguments}))}"
        )
    return family


def _read_size(config: Mapping[str, Any], arguments: Mapping[str, Any], where: str) -> int:
    channels, *edges = config.get("input_size", (3, SIZE, SIZE))
    given = arguments.get("img_size") or edges
    edges = {given} if isinstance(given, int) else set(given)
    if len(edges) > 1 or channels != 3:
        raise WeightsMismatch(
            f"{where}: {channels} channels and edges of {sorted(edges)}; only square images of "
            f"three channels can be read"
        )
    return edges.pop()


def _read_preprocessing(config: Mapping[str, Any], size: int) -> Preprocessing | None:
    """Reads `pretrained_cfg`; None if images are padded, which we do not support."""
    mode = config.get("crop_mode", "center")
    resize = math.floor(size / config.get("crop_pct", CROP))
    mean, std = config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD)
    if mode not in ("center", "squash"):
        return None
    filter_name = config.get("interpolation")
    method = filter_name if filter_name in FILTERS else "bicubic"
    colors = tuple(mean), tuple(std)
    return Preprocessing(size, resize, mode == "center", *colors, method, half_to_even=True)


def write(pretrained: Pretrained) -> dict[str, Any]:
    """Makes the files of a folder that `timm.create_model("local-dir:...", pretrained=True)` opens.

    A classifier that was read from timm is written again.
    """
    family, config = write_config(pretrained)
    weights = architecture.give(pretrained.entries(family.table), pretrained.flat)
    allowed = {name for name in weights if name.endswith(COUNTER)}
    allowed |= {f"{family.classifier}.weight", f"{family.classifier}.bias"}
    kept = pretrained.kept_for("timm")
    weights |= {name: array for name, array in kept.items() if name in allowed}
    return {"config.json": config, "model.safetensors": weights}


def write_config(pretrained: Pretrained) -> tuple[TimmFamily, dict[str, Any]]:
    """Returns the kind of tower in timm, and `config.json`."""
    if pretrained.embeds("image") and pretrained.kind == "dual":
        raise WeightsMismatch(
            "timm has image towers only: write that of this dual encoder with --part=image, in "
            'Python with model.tower("image")'
        )
    settings = architecture.settings(pretrained.model) if pretrained.kind == "image" else {}
    family = next((f for f in FAMILIES if f.tower == settings.get("name")), None)
    if family is None:
        known = ", ".join(f.tower for f in FAMILIES)
        what = settings.get("name") or "texts"
        raise WeightsMismatch(f"timm has image towers of the kinds {known}, and none for {what}")
    for name, value in family.needs.items():
        if settings[name] != value:
            raise WeightsMismatch(
                f"timm's {family.tower} needs {name}={value!r}, the model has {settings[name]!r}"
            )
    architecture_name, arguments = family.write(settings, pretrained.image_size)
    classifier = pretrained.kept_for("timm").get(f"{family.classifier}.weight", ())
    about = {
        "fixed_input_size": family.fixed_size,
        "num_classes": len(classifier),
        "first_conv": family.first,
        "classifier": family.classifier,
    }
    return family, {
        "architecture": architecture_name,
        "num_classes": len(classifier),
        "num_features": pretrained.model.output_dim,
        "model_args": arguments,
        "pretrained_cfg": _write_preprocessing(pretrained, family.fixed_size) | about,
    }


def _write_preprocessing(pretrained: Pretrained, fixed_size: bool) -> dict[str, Any]:
    size, seen = pretrained.image_size, pretrained.preprocessing
    if seen and not fixed_size:  # it may be evaluated on larger images than it was trained on
        size = seen.size
    method = seen.method if seen else "bicubic"
    config = {"input_size": [3, size, size], "interpolation": method}
    if seen is None:
        return config
    fraction = size / seen.resize
    if math.floor(size / fraction) != seen.resize:  # timm truncates; rounding may lose a pixel
        fraction = math.nextafter(fraction, 0)
    mode = "center" if seen.keep_aspect else "squash"
    more = {"crop_pct": fraction, "crop_mode": mode, "mean": list(seen.mean), "std": list(seen.std)}
    return config | more
