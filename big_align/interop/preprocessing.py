"""How images are prepared for a model, as transformers, open_clip and our configs say it."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

PROCESSORS = {
    "align": "EfficientNetImageProcessor",
    "clip": "CLIPImageProcessor",
    "clip_vision_model": "CLIPImageProcessor",
    "mlcd_vision_model": "CLIPImageProcessor",
    "efficientnet": "EfficientNetImageProcessor",
    "resnet": "ConvNextImageProcessor",
    "swin": "ViTImageProcessor",
    "vit": "ViTImageProcessor",
}
"""transformers' image processor for a model type."""

BICUBIC = 3
"""Pillow's number of the filter, as transformers writes it."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Resizes, takes the middle `size` x `size`, then (x / 255 - mean) / std.

    Args:
      size: pixels of an edge of what the model sees.
      resize: pixels of an edge before the crop.
      keep_aspect: whether `resize` is the shorter edge, or both edges whatever the aspect.
      mean: of red, green and blue, on a scale from 0 to 1.
      std: standard deviations, on the same scale.
    """

    size: int
    resize: int
    keep_aspect: bool = True
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    @property
    def transform(self) -> str:
        """The image operations of an evaluator in a config."""
        name = "resize_small" if self.keep_aspect else "resize"
        return f"{name}({self.resize})|central_crop({self.size})"

    @staticmethod
    def from_transform(
        transform: str, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> "Preprocessing":
        """Reads it from the image operations of an evaluator.

        Raises:
          ValueError: they are not a resize and a central crop, which is all that other libraries
            can be told.
        """
        numbers = r"\((\d+)\)"
        pattern = rf"\s*(resize|resize_small){numbers}\s*(?:\|\s*central_crop{numbers}\s*)?"
        match = re.fullmatch(pattern, transform)
        if not match or (match[1] == "resize_small" and not match[3]):
            raise ValueError(
                f"transform {transform!r} cannot be told to other libraries; "
                f"'resize_small(R)|central_crop(S)' and 'resize(R)|central_crop(S)' can"
            )
        resize, crop = int(match[2]), int(match[3] or match[2])
        return Preprocessing(crop, resize, match[1] == "resize_small", tuple(mean), tuple(std))


def read_processor(config: Mapping[str, Any]) -> Preprocessing | None:
    """Reads transformers' `preprocessor_config.json`; None if it does not say a size."""
    config = config.get("image_processor", config)
    size = config.get("size")
    if size is None:
        return None
    keep_aspect = isinstance(size, int) or "shortest_edge" in size
    edge = size if isinstance(size, int) else size.get("shortest_edge") or size["height"]
    mean, std = config.get("image_mean", CLIP_MEAN), config.get("image_std", CLIP_STD)
    if not config.get("do_normalize", True):
        # ALIGN's way, x / 127.5 - 1, is a mean and a standard deviation of one half.
        half = bool(config.get("rescale_offset"))
        mean, std = (0.5 * half,) * 3, (1.0 - 0.5 * half,) * 3
    crop = edge
    if config.get("do_center_crop") and config.get("crop_size"):
        crop = config["crop_size"]
        crop = crop if isinstance(crop, int) else crop["height"]
    return Preprocessing(crop, edge, keep_aspect, tuple(mean), tuple(std))


def write_processor(model_type: str, preprocessing: Preprocessing) -> dict[str, Any]:
    """Writes `preprocessor_config.json` for a model type of transformers."""
    name, p = PROCESSORS[model_type], preprocessing
    common = {
        "image_processor_type": name,
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
        "resample": BICUBIC,
    }
    edges = {"shortest_edge": p.resize} if p.keep_aspect else {"height": p.resize, "width": p.resize}
    crop = {"do_center_crop": True, "crop_size": {"height": p.size, "width": p.size}}
    more = {"include_top": False, "rescale_offset": False} if "Efficient" in name else {}
    return common | {"size": edges} | crop | more
