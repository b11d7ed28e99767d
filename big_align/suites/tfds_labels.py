"""VTAB labels without a TFDS feature: they are made from others (task_adaptation, data/)."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from big_align.data import examples
from big_align.data.sources.record_source import TFDSSource

CLEVR_LEAST = 3
"""The least number of objects in an image of CLEVR."""
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
KITTI_NONE = 1000.0
"""The distance, in meters, that is used for an image without a vehicle."""
KITTI_VEHICLES = 3
"""The types below this are cars, vans and trucks."""


def _count_clevr(features: Any) -> int:
    return len(features["objects/size"].int64_list.value) - CLEVR_LEAST


def _bin_clevr(features: Any) -> int:
    places = np.array(features["objects/pixel_coords"].float_list.value).reshape(-1, 3)
    return _find_bin(CLEVR_DISTANCES, float(places[:, 2].min()))


def _bin_kitti(features: Any) -> int:
    kinds = np.array(features["objects/type"].int64_list.value)
    places = np.array(features["objects/location"].float_list.value).reshape(-1, 3)
    return _find_bin(KITTI_DISTANCES, float(min([*places[kinds < KITTI_VEHICLES, 2], KITTI_NONE])))


def _find_bin(thresholds: tuple[float, ...], distance: float) -> int:
    """Returns the last threshold that is below a distance."""
    return int(np.flatnonzero(np.array(thresholds) < distance)[-1])


RULES: dict[str, Callable[[Any], int]] = {
    "clevr_count": _count_clevr,
    "clevr_distance": _bin_clevr,
    "kitti_distance": _bin_kitti,
}
"""Functions that make the label of an example from its features, by `Layout.label`."""


class RuledSource(TFDSSource):
    """Examples of a prepared TensorFlow data set, with a label made by one of `RULES`."""

    def __init__(
        self, dataset: str, split: str, data_dir: str, rule: str, index_dir: str | None = None
    ):
        super().__init__(dataset, split, data_dir, index_dir=index_dir)
        self._rule = RULES[rule]

    def _texts(self, features: Any) -> tuple[list[str], tuple[int, ...]]:
        try:
            return [], (self._rule(features),)
        except (KeyError, ValueError, IndexError) as error:
            raise examples.BrokenExample(f"its features make no label ({error})") from error


class DspritesSource(TFDSSource):
    """Examples of dSprites, whose pixels TFDS stores as 0 and 1; they become black and white."""

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example; raises BrokenExample."""
        example = super().read(shard, index)
        with Image.open(io.BytesIO(example.image)) as image:
            pixels = np.array(image.convert("L"), np.uint8)
        example.image = np.repeat(255 * (pixels[..., None] > 0).astype(np.uint8), 3, axis=-1)
        return example
