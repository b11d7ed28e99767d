"""Pictures of how well texts fit their images (IDEA, Huang et al. 2022, Fig. 8)."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from big_align.evaluators.exhibits.tag_texts import Fit


def draw_fits(fits: Mapping[str, Fit]) -> Figure:
    """Draws how cosines of images with texts are distributed, for texts of several kinds (Fig. 8).

    Args:
      fits: the cosines, by the name of the texts.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    every = np.concatenate([part for fit in fits.values() for part in fit])
    edges = np.linspace(every.min(), every.max(), 41)
    for number, (name, fit) in enumerate(fits.items()):
        for part, style, whose in ((fit.own, "-", "own"), (fit.other, ":", "another image's")):
            axis.hist(
                part, edges, density=True, histtype="step", color=f"C{number}", linestyle=style,
                linewidth=1.6, label=f"{name}, {whose}: mean {part.mean():.2f}",
            )  # fmt: skip
    axis.set(xlabel="cosine of image and text", ylabel="density")
    axis.legend(frameon=False, fontsize=9)
    return figure
