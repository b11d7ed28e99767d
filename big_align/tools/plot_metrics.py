"""Plots the loss and the evaluations of a run over its steps.

For example:
  python -m big_align.tools.plot_metrics --workdir=DIR --output=curves.png
"""

import argparse
import sys

from big_align.pages.plots import curves
from big_align.pages.plots.picture_files import check_picture
from big_align.pages.run_report.run_record import TRAINING
from big_align.tools import command
from big_align.training.logs import metrics


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = command.make_parser("plot_metrics", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, help="the workdir of the run, with its metrics.jsonl")
    add("--output", default="curves.png", help="a picture: png, pdf or svg (%(default)s)")
    return command.run(plot, parser.parse_args(arguments))


def plot(options: argparse.Namespace) -> None:
    """Draws the curves, and prints where they are."""
    check_picture(options.output)
    series = metrics.read_metrics(options.workdir)
    figure = curves.draw_curves(
        {name: values for name, values in series.items() if not name.startswith(TRAINING)}
    )
    figure.savefig(options.output, dpi=100)
    print(options.output)


if __name__ == "__main__":
    sys.exit(main())
