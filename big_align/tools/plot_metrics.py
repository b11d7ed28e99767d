"""Plots the loss and the evaluations of a run over its steps.

For example:
  python -m big_align.tools.plot_metrics --workdir=DIR --output=curves.png
"""

import argparse
import sys

from big_align.errors import UserError
from big_align.plots import curves
from big_align.plots.picture_files import check_picture
from big_align.reports.run_record import TRAINING
from big_align.training.logs import metrics


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m big_align.tools.plot_metrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workdir", required=True, help="the workdir of the run, with its metrics.jsonl"
    )
    parser.add_argument(
        "--output", default="curves.png", help="the picture to write: png, pdf or svg (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        check_picture(options.output)
        series = metrics.read_metrics(options.workdir)
        figure = curves.draw_curves(
            {name: values for name, values in series.items() if not name.startswith(TRAINING)}
        )
        figure.savefig(options.output, dpi=100)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
