"""Distributions as ridges: a band for each step, with a curve for each group."""

import numpy as np
from jaxtyping import Float


def crop_bins(
    edges: Float[np.ndarray, "b_and_1"], shares: Float[np.ndarray, "t g b"]
) -> tuple[Float[np.ndarray, "c_and_1"], Float[np.ndarray, "t g c"]]:
    """Returns the bins from the first to the last that anything is in, with one more on each side.

    They are given by their edges, and by how high each curve is over them, at most 1.
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

    Heights over each bin are at most 1, which is `height` pixels above the bottom.
    """
    middles = left + (right - left) * (np.arange(len(heights)) + 0.5) / len(heights)
    curve = zip(middles.tolist(), (bottom - height * heights).tolist(), strict=True)
    return [(float(left), float(bottom)), *curve, (float(right), float(bottom))]
