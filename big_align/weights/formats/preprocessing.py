"""How images are prepared for a model, as transformers, open_clip and our configs describe it."""

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

from big_align.config.components.transforms import shape_of_image
from big_align.core.errors import WeightFileError
from big_align.data.examples import BrokenExample
from big_align.data.images import given_images
from big_align.data.images.image_ops import Transform
from big_align.models.dual_encoder import IMAGENET_MEAN, IMAGENET_STD

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
"""Mean and standard deviation in transformers by default: pixels from -1 to 1."""

FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
"""Pillow's numbers for our resampling methods, as transformers writes them."""

CONVNEXT_CROP, CONVNEXT_WHOLE = 0.875, 384
"""ConvNext's processor keeps this fraction of an edge, and all of it from this many pixels on."""

EXPRESSIBLE = (["resize"], ["resize", "central_crop"], ["resize_small", "central_crop"])
"""Operations that other libraries have too, if their results are square."""

LARGEST_IMAGE = 4096
"""Pixels of an edge, far beyond any published model; a config may contain any number."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Resizes, keeps the middle `size` x `size`, then (x / 255 - mean) / std.

    Args:
      size: pixels of an edge of what the model sees.
      resize: pixels of an edge before the crop.
      keep_aspect: whether `resize` is the shorter edge, or both edges regardless of the aspect.
      mean: the means of red, green and blue, on a scale from 0 to 1.
      std: standard deviations, on the same scale.
      method: the resampling filter.
      half_to_even: whether half of an odd margin of the crop is rounded to an even number, as by
        torchvision, and not down, as by transformers.
      operations: image operations in place of the resize and the crop, if these are not enough. No
        other library has them.

    Raises:
      ValueError: a size is not a number of pixels, or is beyond `LARGEST_IMAGE`; or an operation is
        unknown.
    """

    size: int
    resize: int
    keep_aspect: bool = True
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    method: str = "bicubic"
    half_to_even: bool = False
    operations: str | None = None

    def __post_init__(self):
        steps = Transform(self.operations or "").steps
        named = [value for _, given in steps for value in given.values() if type(value) is int]
        for edge in (self.size, self.resize, *named):
            if not isinstance(edge, int) or not 0 < edge <= LARGEST_IMAGE:
                raise ValueError(f"images of {edge!r:.50} pixels; from 1 to {LARGEST_IMAGE} can be")

    @property
    def transform(self) -> str:
        """The image operations of an evaluator in a config."""
        if self.operations:
            return self.operations
        name = "resize_small" if self.keep_aspect else "resize"
        method = "" if self.method == "bicubic" else f", method={self.method!r}"
        half = ", half_to_even=True" if self.half_to_even else ""
        return f"{name}({self.resize}{method})|central_crop({self.size}{half})"

    def __call__(self, image: Any) -> UInt8[np.ndarray, "h w 3"]:
        """Makes the pixels that the model sees, before they are standardized.

        Args:
          image: a path, a URL, an encoded image, a PIL image or pixels uint8 [h w 3].

        Raises:
          BrokenExample: there is no such file, or the image cannot be decoded.
          UserError: it is none of these.
        """
        (given,) = given_images.check_images([image])
        try:
            return Transform(self.transform)(given_images.read_image(given), random.Random(0))
        except BrokenExample as error:
            raise BrokenExample(f"{given_images.name_image(given, 0)}: {error}") from error

    @staticmethod
    def from_transform(
        transform: str, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> "Preprocessing":
        """Reads it from the image operations of an evaluator."""
        colors = tuple(mean), tuple(std)
        size = shape_of_image(transform, "transform")[1]
        steps = [(operation.__name__, given) for operation, given in Transform(transform).steps]
        square = all(given.get("width") in (None, given.get("height")) for _, given in steps)
        if [name for name, _ in steps] not in EXPRESSIBLE or not square:
            return Preprocessing(size, size, True, *colors, operations=transform)
        (name, first), (_, last) = steps[0], steps[-1]
        keep_aspect = name == "resize_small"
        method, half_to_even = first.get("method", "bicubic"), last.get("half_to_even", False)
        resize = first["size" if keep_aspect else "height"]
        return Preprocessing(size, resize, keep_aspect, *colors, method, half_to_even)


def read_processor(config: Mapping[str, Any], where: str) -> Preprocessing | None:
    """Reads `preprocessor_config.json` of transformers, in any version; None if it has no size."""
    if config.get("size") is None:
        return None
    try:
        return Preprocessing(**_read_frame(config), **_read_colors(config))
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise WeightFileError(
            f"{where}: the settings of its image processor cannot be read "
            f"({type(error).__name__}: {error})"
        ) from error


def _class_of(config: Mapping[str, Any]) -> str:
    return config.get("image_processor_type") or config.get("feature_extractor_type") or ""


def _read_frame(config: Mapping[str, Any]) -> dict[str, Any]:
    """Reads how the picture is resized and cropped."""
    size, name = config["size"], _class_of(config)
    if isinstance(size, int):  # files from 2022 and before
        size = {"shortest_edge" if name.startswith(("CLIP", "ConvNext")) else "height": size}
    edge = resize = int(size.get("shortest_edge") or size["height"])
    keep_aspect = "shortest_edge" in size
    if name.startswith("ConvNext"):
        keep_aspect = edge < CONVNEXT_WHOLE
        resize = int(edge / config.get("crop_pct", CONVNEXT_CROP)) if keep_aspect else edge
    elif config.get("do_center_crop", name.startswith("CLIP")):
        crop = config.get("crop_size") or edge
        edge = crop if isinstance(crop, int) else int(crop["height"])
    number = config.get("resample")
    filters = {v: k for k, v in FILTERS.items()}
    method = "bicubic" if number is None else filters[number]
    return {"size": edge, "resize": resize, "keep_aspect": keep_aspect, "method": method}


def _read_colors(config: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Reads (x f - offset - mean) / std as (x / 255 - mean') / std'."""
    name = _class_of(config)
    defaults = (CLIP_MEAN, CLIP_STD) if name.startswith("CLIP") else (HALF, HALF)
    pairs = zip(("image_mean", "image_std"), defaults, strict=True)
    mean, std = (tuple(map(float, config.get(key) or default)) for key, default in pairs)
    # EfficientNet's processor divides twice for its authors' classifier.
    twice = std if config.get("include_top", name.startswith("EfficientNet")) else (1.0,) * 3
    if not config.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    factor = round(factor * 255, 9)
    offset = float(bool(config.get("rescale_offset")))
    return {
        "mean": tuple((offset + m) / factor for m in mean),
        "std": tuple(s * t / factor for s, t in zip(std, twice, strict=True)),
    }


def write_processor(model_type: str, preprocessing: Preprocessing) -> dict[str, Any]:
    """Writes `preprocessor_config.json` for a model type of transformers."""
    p = preprocessing
    sides = ("shortest_edge",) if p.keep_aspect else ("height", "width")
    # CLIP's processor can do all that ours does; AlignProcessor requires EfficientNet's.
    efficientnet = {"image_processor_type": "EfficientNetImageProcessor"}
    efficientnet |= {"include_top": False, "rescale_offset": False}
    kind = efficientnet if model_type == "align" else {"image_processor_type": "CLIPImageProcessor"}
    return kind | {
        "do_resize": True,
        "size": dict.fromkeys(sides, p.resize),
        "resample": FILTERS[p.method],
        "do_center_crop": True,
        "crop_size": {"height": p.size, "width": p.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
    }
