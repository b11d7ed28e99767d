"""Arrays of earlier weights: their places in a dual encoder, and tables made to fit it."""

from collections.abc import Sequence

import numpy as np

from big_align.core.errors import WeightsMismatch
from big_align.models.parts import resize
from big_align.weights.formats.pretrained import Pretrained


def belongs(name: str, part: str) -> bool:
    """Returns whether an array belongs to a part of a dual encoder."""
    return part == "all" or name.split("/")[1] == part


def place_arrays(source: Pretrained, part: str, path: str) -> dict[str, np.ndarray]:
    """Returns a model's arrays by their names in a dual encoder."""
    if source.kind == "dual":
        return {name: array for name, array in source.flat.items() if belongs(name, part)}
    if part not in ("all", source.kind):
        raise WeightsMismatch(f"config.init.{part}: {path} is a tower for {source.kind}s")
    pairs = ((name.partition("/"), array) for name, array in source.flat.items())
    return {f"{first}/{source.kind}/{rest}": array for (first, _, rest), array in pairs}


def count_leading(source: Pretrained) -> int:
    """Returns how many rows of the text tower's position table are before the first position."""
    text = source.model if source.kind == "text" else getattr(source.model, "text", None)
    return getattr(text, "rows_before_positions", 0)


def fit_table(
    name: str, array: np.ndarray, shape: Sequence[int], leading: int = 0
) -> tuple[np.ndarray, str] | None:
    """Makes a table of positions or of relative biases fit a model, and tells what was done to it.

    Token i of a text keeps position i: a table of more positions is cut, and all rows of one of
    fewer are returned, whose others nobody has learned. `leading` rows of a text tower's table come
    before the first position. None if it is no such table, or one of a different kind.
    """
    if array.ndim != len(shape) or array.shape[-1] != shape[-1]:
        return None
    if name.endswith("relative_position_bias"):
        old, new = resize.find_window(len(array)), resize.find_window(shape[0])
        told = f"windows of {old} there, interpolated to {new}"
        return resize.resize_relative_bias(array, new), told
    if not name.endswith("position_embedding"):
        return None
    if array.ndim == 3:
        (h, w), new = array.shape[:2], (shape[0], shape[1])
        told = f"positions of {h} x {w} patches there, interpolated to {new[0]} x {new[1]}"
        return resize.resize_grid(array, new), told
    old, length = len(array) - leading, shape[0] - leading
    kept = f"the first {length} taken" if length <= old else "all of them taken, and "
    kept += f"{length - old} more are fresh" if length > old else ""
    return array[: shape[0]], f"{old} positions of texts there, {kept}"
