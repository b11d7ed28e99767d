"""Learned tables of earlier weights, made to fit the images, windows and texts of a model."""

from collections.abc import Sequence

import numpy as np

from big_align.models.parts import resize


def fit_table(
    name: str, array: np.ndarray, shape: Sequence[int], leading: int = 0
) -> tuple[np.ndarray, str] | None:
    """Makes a table of positions or of relative biases fit a model.

    Args:
      name: its path within a dual encoder.
      array: the table.
      shape: the shape that is wanted.
      leading: rows before the first position in the table of a text tower.

    Returns:
      The table, and what was done to it; None if it is no such table, or one of a different kind.
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
    told = f"{old} positions of texts there, "
    if length <= old:
        told += f"the first {length} taken"
    else:
        told += f"interpolated to {length}, so each token's is between two that were learned"
    return resize.fit_text_positions(array, shape[0], leading), told
