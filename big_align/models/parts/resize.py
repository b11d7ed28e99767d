"""Learned tables made to fit other images and windows.

Interpolation of images' tables is cubic (Keys, 1981, a = -1/2) and widens its filter if a table
shrinks, with pixels as areas: this is what `torch.nn.functional.interpolate(mode="bicubic",
antialias=True)` computes, with which timm and open_clip resize positions.
"""

import math

import jax
import numpy as np
from jaxtyping import Float


def resize_grid(
    table: Float[np.ndarray, "h w c"], new: tuple[int, int]
) -> Float[np.ndarray, "h2 w2 c"]:
    """Resizes the position embeddings of a vision transformer to other rows and columns."""
    if table.shape[:2] == tuple(new):
        return table
    return np.asarray(jax.image.resize(table, (*new, table.shape[-1]), "cubic"))


def find_window(offsets: int) -> int:
    """Returns the edge of the window that a table of relative position biases is for.

    The table has a row for each offset between two tokens of the window: (2 edge - 1)^2.
    """
    edge = math.isqrt(offsets)
    if edge**2 != offsets or edge % 2 == 0:
        raise ValueError(f"a table of {offsets} offsets is not that of a window")
    return (edge + 1) // 2


def resize_relative_bias(
    table: Float[np.ndarray, "l heads"], window: int
) -> Float[np.ndarray, "l2 heads"]:
    """Resizes the relative position biases of window attention to a window of another edge."""
    old, new = (2 * edge - 1 for edge in (find_window(len(table)), window))
    return resize_grid(table.reshape(old, old, -1), (new, new)).reshape(new**2, -1)
