"""Pictures of numbers: means over seeds with their intervals, against what was varied."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.tables import measure_interval

MOST_INSIDE = 5
"""Lines that a legend within a panel has; a longer one is beside the panels."""


class Line(NamedTuple):
    """A line of a panel: the values of all seeds by what was varied, and matplotlib's settings."""

    numbers: Mapping[float, Sequence[float]]
    settings: Mapping[str, Any] = {}


def draw(
    path: pathlib.Path,
    panels: Sequence[tuple[Mapping[str, Line], Mapping[str, Any]]],
    size: tuple[float, float],
    ticks: bool = False,
    **settings: Any,
) -> None:
    """Draws panels beside each other: lines by their labels, and settings of the axes.

    With `ticks`, each value that was varied is a tick. The size is in inches, and other settings
    are those of `pyplot.subplots`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings |= dict(figsize=size, squeeze=False, layout="constrained")
    figure, (axes,) = pyplot.subplots(1, len(panels), **settings)
    for axis, (lines, described) in zip(axes, panels, strict=True):
        for label, line in lines.items():
            points = [measure_interval(values) for values in line.numbers.values()]
            means, halves = zip(*points, strict=True)
            given = dict(marker="o" if ticks else "", capsize=3, label=label) | line.settings
            axis.errorbar(list(line.numbers), means, halves, **given)
        axis.set(**described)
        axis.grid(alpha=0.3)
        if ticks:
            values = sorted({value for line in lines.values() for value in line.numbers})
            axis.set_xticks(values, [f"{value:g}" for value in values])
            axis.minorticks_off()
    if len(panels[0][0]) > MOST_INSIDE:
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right")
    else:
        axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
