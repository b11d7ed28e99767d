"""Checkpoints that hold a Swin among other things: UniCL's as released, and MoBY's."""

import dataclasses
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from big_align.core.errors import WeightsMismatch
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD
from big_align.weights.arrays.weight_files import WeightFile, open_weights
from big_align.weights.formats import timm_format
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Pretrained, assemble, read_temperature
from big_align.weights.formats.timm_models import NOTHING_STATED, read_swin
from big_align.weights.tables.unicl import UNICL

IMAGE, TEXT = "image_encoder.", "text_encoder."
FORMER = {"visual.": IMAGE, "lang_encoder.": TEXT, "text.": TEXT}
"""Names of UniCL's towers before the release, which its own code also translates."""

FORMER_PROJECTION = {"vision_projection": "image_projection"}
SCALE = "logit_scale"
UNUSED = ("attn_mask", "relative_position_index", f"{IMAGE}head.", SCALE)

HEAD_WIDTH, EPSILON = 64, 1e-12
"""For UniCL's text tower: its configs have 8 heads for a width of 512, its code this epsilon."""

MOBY = "encoder."
"""The one of MoBY's two encoders that learns by gradients."""

BIAS_TABLE = "layers.0.blocks.0.attn.relative_position_bias_table"
"""An array that every Swin has."""

CROP = 224 / 256
"""The fraction of an edge that the authors' evaluations keep."""


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a file of weights has the names of one of them."""
    today = {_name_today(name) for name in names}
    return MOBY + BIAS_TABLE in today or {IMAGE + BIAS_TABLE, "image_projection"} <= today


def _name_today(name: str) -> str:
    """Returns the name of an array in UniCL's release."""
    for former, today in FORMER.items():
        if name.startswith(former):
            return today + name.removeprefix(former)
    return FORMER_PROJECTION.get(name, name)


def read(path: pathlib.Path) -> Pretrained:
    """Reads a file; the sizes follow from its shapes.

    From MoBY's it takes the encoder: its slowly moving copy, the projectors and the queues are left
    out. From UniCL's it takes everything; texts are tokenized by CLIP's tokenizer, whose files are
    not part of it.
    """
    with open_weights(path) as weights:
        if MOBY + BIAS_TABLE in weights:
            weights.arrays = _take(weights.arrays, MOBY)
            tower = timm_format.read_state_dict(weights, str(path))
            seen = _prepare(tower.image_size)
            return dataclasses.replace(tower, preprocessing=seen, source="moby")
        weights.arrays = {_name_today(name): array for name, array in weights.arrays.items()}
        return _read_unicl(weights, str(path))


def _take(arrays: Mapping[str, Any], start: str) -> dict[str, Any]:
    """Returns what has names with this beginning, by the rest of their names."""
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def _prepare(size: int) -> Preprocessing:
    return Preprocessing(
        size, int(size / CROP), True, IMAGENET_MEAN, IMAGENET_STD, half_to_even=True
    )


def _read_unicl(weights: WeightFile, where: str) -> Pretrained:
    shapes = {name: array.shape for name, array in weights.arrays.items()}
    try:
        image, size = read_swin(_take(shapes, IMAGE), NOTHING_STATED)
        node = {
            "image": {"name": "swin"} | image,
            "text": _read_text(_take(shapes, TEXT)),
            "embedding_dim": shapes["image_projection"][1],
            "image_projection": True,
            "projection_bias": False,
        }
    except KeyError as error:
        raise WeightsMismatch(
            f"{where} looks like UniCL with a Swin and a transformer for texts, but one of its "
            f"towers lacks {error.args[0]}"
        ) from error
    return assemble(
        node,
        UNICL,
        weights,
        image_size=size,
        where=where,
        source="unicl",
        unused=UNUSED,
        preprocessing=_prepare(size),
        temperature=read_temperature(weights),
    )


def _read_text(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    vocab_size, width = shapes["token_embedding.weight"]
    blocks = [re.match(r"resblocks\.(\d+)\.", name) for name in shapes]
    return {
        "name": "clip_text",
        "variant": "b",
        "width": width,
        "depth": 1 + max((int(block[1]) for block in blocks if block), default=0),
        "mlp_dim": shapes["resblocks.0.mlp.c_fc.weight"][0],
        "heads": max(width // HEAD_WIDTH, 1),
        "vocab_size": vocab_size,
        "max_length": shapes["positional_embedding"][0],
        "activation": "quick_gelu",
        "layer_norm_eps": EPSILON,
    }
