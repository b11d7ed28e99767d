"""Learned tables resized for other images, windows and text lengths.

Interpolation is cubic (Keys, 1981, a = -1/2) and widens its filter if a table shrinks, with pixels
as areas: this is what `torch.nn.functional.interpolate(mode="bicubic", antialias=True)` computes,
with which timm and open_clip resize positions.
"""

import jax
import numpy as np
from jaxtyping import Float


def _resize_grid(
    table: Float[np.ndarray, "l c"], old: tuple[int, int], new: tuple[int, int]
) -> Float[np.ndarray, "l2 c"]:
    if old == new:
        return table
    channels = table.shape[-1]
    resized = jax.image.resize(table.reshape(*old, channels), (*new, channels), "cubic")
    return np.asarray(resized).reshape(-1, channels)


def resize_positions(
    table: Float[np.ndarray, "l c"], old: tuple[int, int], new: tuple[int, int], leading: int
) -> Float[np.ndarray, "l2 c"]:
    """Resizes the position embeddings of a vision transformer to another grid of patches.

    Args:
      table: one row per position: first `leading` tokens outside the grid, then the grid row by
        row.
      old: rows and columns of the grid that the table is for.
      new: rows and columns of the new grid.
      leading: number of tokens before the grid, such as a class token; they are kept unchanged.

    Returns:
      A table of `leading` + new rows x new columns positions.

    Raises:
      ValueError: the number of rows of the table does not match `old` and `leading`.
    """
    if len(table) != leading + old[0] * old[1]:
        raise ValueError(
            f"a table of {len(table)} positions is not {leading} and a grid of {old[0]} x {old[1]}"
        )
    return np.concatenate([table[:leading], _resize_grid(table[leading:], old, new)])


def resize_relative_bias(
    table: Float[np.ndarray, "l heads"], old: int, new: int
) -> Float[np.ndarray, "l2 heads"]:
    """Resizes the relative position biases of window attention to another window.

    Args:
      table: one row per offset between two tokens of a window, (2 old - 1)^2 in all.
      old: tokens along an edge of the window that the table is for.
      new: tokens along an edge of the new window.

    Returns:
      A table of (2 new - 1)^2 offsets.

    Raises:
      ValueError: the number of rows of the table does not match `old`.
    """
    edge = 2 * old - 1
    if len(table) != edge**2:
        raise ValueError(f"a table of {len(table)} offsets is not that of a window of {old}")
    return _resize_grid(table, (edge, edge), (2 * new - 1, 2 * new - 1))


def resize_positions_1d(
    table: Float[np.ndarray, "l c"], length: int, leading: int = 0
) -> Float[np.ndarray, "l2 c"]:
    """Resizes the position embeddings of a text tower, linearly.

    Args:
      table: one row per position.
      length: number of rows wanted.
      leading: rows before the first position, which stay as they are (RoBERTa's two).

    Returns:
      A table of `length` rows.
    """
    if length == len(table):
        return table
    shape = length - leading, table.shape[1]
    resized = jax.image.resize(table[leading:], shape, "linear", antialias=False)
    return np.concatenate([table[:leading], resized])
