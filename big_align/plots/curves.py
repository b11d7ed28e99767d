"""Curves of a run's progress, without a display."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from big_align.core.errors import UserError


def draw_curves(series: Mapping[str, Sequence[tuple[int, float]]]) -> Figure:
    """Draws the loss and, with one panel per evaluator, its numbers, over the steps.

    Args:
      series: steps and values by name, as `metrics.read_metrics` returns; every name with a slash
        is taken for that of an evaluator.

    Raises:
      UserError: there is neither a loss nor an evaluation.
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
