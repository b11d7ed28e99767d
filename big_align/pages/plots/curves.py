"""Curves of a run's progress, and of how cosines are distributed, without a display."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from big_align.core.errors import UserError
from big_align.evaluators.exhibits.tag_texts import Fit


def draw_curves(series: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Draws the loss and, with one panel per evaluator, its numbers, over the steps.

    The series are those of `metrics.read_metrics`; every name with a slash is taken for that of an
    evaluator. With neither, there is nothing to draw, a UserError.
    """
    panels: dict[str, dict[str, Any]] = {}
    if "loss" in series:  # a run may be shorter than `log_every`
        panels["loss"] = {"loss": series["loss"]}
    for name, values in series.items():
        evaluator, slash, key = name.partition("/")
        if slash:
            panels.setdefault(evaluator, {})[key] = values
    if not panels:
        raise UserError("there is nothing to draw yet: neither a loss nor an evaluation is logged")
    figure = Figure(figsize=(4.5 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for key, values in curves.items():
            axis.plot(*zip(*values, strict=True), label=key, marker="." if len(values) < 30 else "")
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        if len(curves) > 1:
            axis.legend(fontsize=7)
    return figure


def draw_fits(fits: Mapping[str, Fit]) -> Figure:
    """Draws cosines of images with texts of several kinds (IDEA, Huang et al. 2022, Fig. 8)."""
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
