"""Maps of embedded names by t-SNE (UniCL, Yang et al. 2022, Fig. 4, 9, 10), without a display."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from big_align.core.errors import UserError

FIRST, SECOND = "tab:green", "tab:orange"
LEAST = 4
"""Least number of points in a map: with fewer there are no neighborhoods to preserve."""
NEIGHBORS = 30.0
"""Approximate number of neighbors of each point; less if there are few points."""


class Concepts(NamedTuple):
    """Unit-length embeddings of two lists of names: those to look up, and those to find."""

    first: Float[np.ndarray, "n d"]
    second: Float[np.ndarray, "m d"]

    def nearest(self, queries: Sequence[int]) -> Int[np.ndarray, " q"]:
        """Returns the row of `second` with the largest cosine for each query, a row of `first`."""
        return np.argmax(self.first[list(queries)] @ self.second.T, axis=1)


def lay_out(embeddings: Float[np.ndarray, "n d"], seed: int = 0) -> Float[np.ndarray, "n 2"]:
    """Places embeddings in a plane with t-SNE of their cosines (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE  # takes a second to import

    if len(embeddings) < LEAST:
        raise UserError(f"a map needs at least {LEAST} names, not {len(embeddings)}")
    perplexity = min(NEIGHBORS, (len(embeddings) - 1) / 3)
    tsne = TSNE(metric="cosine", init="random", perplexity=perplexity, random_state=seed)
    return tsne.fit_transform(np.asarray(embeddings, np.float64))


def draw_concepts(
    models: Mapping[str, Concepts],
    names: tuple[Sequence[str], Sequence[str]],
    lists: tuple[str, str],
    queries: Sequence[int],
    seed: int = 0,
) -> Figure:
    """Draws a map per model: two lists of names, and the nearest in the second for each query.

    Queries are those of the first list to label, with a line to their nearest in the second.
    """
    figure = Figure(figsize=(8 * len(models), 8.6), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for axis, (title, concepts) in zip(axes, models.items(), strict=True):
        points = lay_out(np.concatenate(concepts), seed)
        first, second = np.split(points, [len(concepts.first)])
        size = np.clip(6000 / len(points), 6, 40)
        for places, color, label in zip((first, second), (FIRST, SECOND), lists, strict=True):
            axis.scatter(*places.T, s=size, alpha=0.6, color=color, linewidths=0, label=label)
        for query, found in zip(queries, concepts.nearest(queries), strict=True):
            here, there = first[query], second[found]
            axis.plot(*zip(here, there, strict=True), color="0.35", linewidth=0.8)
            _name(axis, names[0][query], here, FIRST, above=True)
            _name(axis, names[1][found], there, SECOND, above=False)
        axis.set(title=title.replace("$", r"\$"), xticks=[], yticks=[])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=3)
    return figure


def _name(axis: Axes, name: str, place: Float[np.ndarray, " 2"], color: str, above: bool) -> None:
    """Writes a name above or below its point, so that those of a pair do not overlap."""
    axis.annotate(
        name.replace("$", r"\$"),
        place,
        (0, 9 if above else -9),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=8,
        bbox=dict(boxstyle="round,pad=0.2", facecolor="white", edgecolor=color, alpha=0.85),
        arrowprops=dict(arrowstyle="-", color=color),
    )
