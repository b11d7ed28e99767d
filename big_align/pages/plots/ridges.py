"""Distributions as ridges: a band for each step, with a curve for each group."""

import numpy as np
from jaxtyping import Float


def crop_bins(
    edges: Float[np.ndarray, "b_and_1"], shares: Float[np.ndarray, "t g b"]
) -> tuple[Float[np.ndarray, "c_and_1"], Float[np.ndarray, "t g c"]]:
    """Returns the bins from the first to the last that anything is in, with one more on each side.

    Args:
      edges: where bins begin, and where the last one ends.
      shares: the fraction of the values of a group in each bin, by steps.

    Returns:
      Their edges, and how high each curve is over them, at most 1.
    """
    some = np.flatnonzero((shares > 0).any(axis=(0, 1)))
    first, last = (some[0], some[-1]) if some.size else (0, len(edges) - 2)
    kept = slice(max(first - 1, 0), min(last + 2, len(edges) - 1))
    part = shares[:, :, kept]
    peak = part.max(axis=-1, keepdims=True, initial=0)
    return edges[kept.start : kept.stop + 1], part / np.where(peak > 0, peak, 1)


def trace_ridge(
    heights: Float[np.ndarray, "c"], left: int, right: int, bottom: int, height: float
) -> list[tuple[float, float]]:
    """Returns the corners of the area below a curve, in pixels from the upper left.

    Args:
      heights: of the curve over each bin, at most 1.
      left: where the first bin begins.
      right: where the last bin ends.
      bottom: where the curve is 0.
      height: the number of pixels that 1 is above it.
    """
    middles = left + (right - left) * (np.arange(len(heights)) + 0.5) / len(heights)
    curve = zip(middles.tolist(), (bottom - height * heights).tolist(), strict=True)
    return [(float(left), float(bottom)), *curve, (float(right), float(bottom))]
