"""Checkpoints that the authors of UniCL released: a Swin, CLIP's text transformer, projections."""

import contextlib
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from big_align.errors import WeightsMismatch
from big_align.interop.arrays.weight_files import FORMATS, WeightFile, open_weights
from big_align.interop.formats.preprocessing import Preprocessing
from big_align.interop.formats.pretrained import Pretrained, assemble
from big_align.interop.formats.timm_models import NOTHING_STATED, read_swin
from big_align.interop.tables.unicl import UNICL
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD

IMAGE, TEXT = "image_encoder.", "text_encoder."
FORMER = {"visual.": IMAGE, "lang_encoder.": TEXT, "text.": TEXT}
"""Names of the towers before the release, which its code translates too."""

FORMER_PROJECTION = {"vision_projection": "image_projection"}
MARK = f"{IMAGE}layers.0.blocks.0.attn.relative_position_bias_table"
SCALE = "logit_scale"
UNUSED = ("attn_mask", "relative_position_index", f"{IMAGE}head.", SCALE)

HEAD_WIDTH, EPSILON = 64, 1e-12
"""Of the text tower: its released configs have 8 heads of 512, its code the variance's epsilon."""

CROP = 224 / 256
"""Fraction of an edge that the authors' evaluation keeps."""


def recognize(path: pathlib.Path) -> bool:
    """Tells whether a file of weights has these names."""
    if path.is_dir() or path.suffix not in FORMATS:
        return False
    with open_weights(path) as weights:
        names = {_name_today(name) for name in weights}
        return {MARK, "image_projection"} <= names


def _name_today(name: str) -> str:
    """Returns what an array is called in the release."""
    for former, today in FORMER.items():
        if name.startswith(former):
            return today + name.removeprefix(former)
    return FORMER_PROJECTION.get(name, name)


def read(path: pathlib.Path) -> Pretrained:
    """Reads a file; the sizes follow from its shapes.

    Its texts are made by CLIP's tokenizer, whose files are not part of the checkpoint.

    Raises:
      WeightsMismatch: the towers are others (the release has FocalNets and BERTs too), or arrays
        are missing; the message says what does not fit.
      WeightFileError: the file is damaged.
    """
    with open_weights(path) as found:
        arrays = {_name_today(name): array for name, array in found.arrays.items()}
        weights = WeightFile(path, arrays, contextlib.ExitStack())
        shapes = {name: array.shape for name, array in arrays.items()}
        below = {k.removeprefix(IMAGE): v for k, v in shapes.items() if k.startswith(IMAGE)}
        try:
            image, size = read_swin(below, NOTHING_STATED)
            text = _read_text(shapes)
            embedding_dim = shapes["image_projection"][1]
        except KeyError as error:
            raise WeightsMismatch(
                f"{path} looks like UniCL with a Swin and a transformer for texts, but "
                f"{error.args[0]} is missing"
            ) from error
        scale = weights[SCALE].item() if SCALE in weights else 0.0
        return assemble(
            {
                "image": {"name": "swin"} | image,
                "text": text,
                "embedding_dim": embedding_dim,
                "image_projection": True,
                "projection_bias": False,
            },
            UNICL,
            weights,
            image_size=size,
            where=str(path),
            source="unicl",
            unused=UNUSED,
            preprocessing=Preprocessing(
                size, int(size / CROP), True, IMAGENET_MEAN, IMAGENET_STD, "bicubic"
            ),
            temperature=math.exp(-scale),
        )


def _read_text(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    vocab_size, width = shapes[f"{TEXT}token_embedding.weight"]
    blocks = [re.match(re.escape(TEXT) + r"resblocks\.(\d+)\.", name) for name in shapes]
    return {
        "name": "clip_text",
        "variant": "b",
        "width": width,
        "depth": 1 + max((int(block[1]) for block in blocks if block), default=0),
        "mlp_dim": shapes[f"{TEXT}resblocks.0.mlp.c_fc.weight"][0],
        "heads": max(width // HEAD_WIDTH, 1),
        "vocab_size": vocab_size,
        "max_length": shapes[f"{TEXT}positional_embedding"][0],
        "activation": "quick_gelu",
        "layer_norm_eps": EPSILON,
    }
