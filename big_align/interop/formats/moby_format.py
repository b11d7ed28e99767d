"""Checkpoints of MoBY's self-supervised training: its encoder, which is a Swin."""

import contextlib
import dataclasses
import pathlib

from big_align.interop.arrays.weight_files import FORMATS, WeightFile, open_weights
from big_align.interop.formats import timm_format
from big_align.interop.formats.preprocessing import Preprocessing
from big_align.interop.formats.pretrained import Pretrained
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD

ENCODER = "encoder."
MARK = f"{ENCODER}layers.0.blocks.0.attn.relative_position_bias_table"
"""An array that no other format has."""

CROP = 224 / 256
"""Fraction of an edge that the authors' evaluation keeps."""


def recognize(path: pathlib.Path) -> bool:
    """Tells whether a file of weights has these names."""
    if path.is_dir() or path.suffix not in FORMATS:
        return False
    with open_weights(path) as weights:
        return MARK in weights


def read(path: pathlib.Path) -> Pretrained:
    """Reads the encoder; its slowly moving copy, the projectors and the queues are left out.

    Raises:
      WeightsMismatch: arrays are missing or are no Swin's; the message says what does not fit.
      WeightFileError: the file is damaged.
    """
    with open_weights(path) as found:
        arrays = {
            name.removeprefix(ENCODER): array
            for name, array in found.arrays.items()
            if name.startswith(ENCODER)
        }
        tower = timm_format.read_state_dict(
            WeightFile(path, arrays, contextlib.ExitStack()), str(path)
        )
    size = tower.image_size
    seen = Preprocessing(size, int(size / CROP), True, IMAGENET_MEAN, IMAGENET_STD, "bicubic")
    return dataclasses.replace(tower, preprocessing=seen, source="moby")
