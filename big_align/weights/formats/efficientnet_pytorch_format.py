"""Files of weights with the names of `efficientnet_pytorch` and `efficientnet_lite_pytorch`."""

import pathlib
import re
from collections.abc import Collection

from big_align.core.errors import WeightsMismatch
from big_align.models.efficientnet import IMAGE_SIZES, VARIANTS, find_variant
from big_align.weights.arrays.weight_files import open_weights
from big_align.weights.formats.preprocessing import Preprocessing
from big_align.weights.formats.pretrained import Pretrained, assemble
from big_align.weights.tables.efficientnet import EFFICIENTNET_PYTORCH

MARK = "_blocks.0._depthwise_conv.weight"
"""An array that no other format has."""

BORDER = 32
"""Pixels beyond the crop to which the authors' evaluation resizes."""

LITE_MEAN, LITE_STD = (127 / 255,) * 3, (128 / 255,) * 3
"""The Lite models' own: pixels from 0 to 255 minus 127, over 128."""


def recognize(path: pathlib.Path, names: Collection[str]) -> bool:
    """Returns whether a file of weights has these names."""
    return MARK in names


def read(path: pathlib.Path) -> Pretrained:
    """Reads a file; the variant follows from its shapes.

    How images are prepared is known only for the Lite models: the others have files for two kinds
    of preparation, which do not say which.
    """
    with open_weights(path) as weights:
        shapes = {name: array.shape for name, array in weights.arrays.items()}
        numbers = [re.match(r"_blocks\.(\d+)\.", name) for name in shapes]
        blocks = 1 + max(int(number[1]) for number in numbers if number)
        try:
            stem = shapes["_conv_stem.weight"][0]
            last = shapes[f"_blocks.{blocks - 1}._project_conv.weight"][0]
        except KeyError as error:
            raise WeightsMismatch(
                f"{path} looks like an EfficientNet, but {error.args[0]} is missing"
            ) from error
        lite = "_blocks.0._se_reduce.weight" not in shapes
        variant = find_variant(blocks, stem, last, lite)
        if variant is None:
            raise WeightsMismatch(
                f"{path}: no EfficientNet{'-Lite' if lite else ''} has {stem} channels in its "
                f"first convolution, {blocks} blocks and {last} channels behind them; known are "
                f"{', '.join(VARIANTS)}"
            )
        size = IMAGE_SIZES[variant]
        seen = Preprocessing(size, size + BORDER, mean=LITE_MEAN, std=LITE_STD) if lite else None
        return assemble(
            {"name": "efficientnet", "variant": variant, "head": True},
            EFFICIENTNET_PYTORCH,
            weights,
            image_size=size,
            where=str(path),
            source="efficientnet_pytorch",
            unused=("_fc.", "num_batches_tracked"),
            preprocessing=seen,
        )
