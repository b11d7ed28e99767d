"""Cosines of images with centers during training, by eq. 4 and by eq. 5: MLCD's Figure 3.

    python benchmarks/cluster_cosines.py --output=workdirs/cluster_cosines --plot=cosines.png

The paper says that eq. 5 raises the cosines of an image with its own centers, and lowers those with
others. Towers, clusters and learning rates are as in the tables `losses` and `scale` of
benchmarks/cluster_settings.py, where one rate was the best of all rows. Cosines are those that
training logs: of the batch's images as they are trained, with their own centers and with the
sampled others, by the parameters of that step. Numbers are means over a hundred steps, times 100,
with the interval of 95% of the mean over the seeds, and what eq. 5 has more than eq. 4, paired by
seed. It needs what cluster_settings.py needs, and continues where it was stopped. --plot=FILE draws
the numbers against the steps.
"""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import cluster_settings, curves, trials
from benchmarks.cluster_settings import Found, Row
from benchmarks.trials import Trial
from big_align.core import huge_pages

RATE = 3e-3
"""The best of five for both losses at both scales, by cluster_settings.py."""
EQUATIONS = {"eq. 4": "mlc", "eq. 5": "mlcd"}
ROWS = {
    f"scale {scale:g}": {title: Row(loss, scale=scale) for title, loss in EQUATIONS.items()}
    for scale in (16.0, 64.0)
}
WINDOW, STEPS = 100, 1200
SIDES = {"positive": "positive_cosine", "negative": "negative_cosine"}
SHOWN = (100, 400, 1200)
COLUMNS = {
    f"{side}, to step {last}": f"{metric}/{last}"
    for side, metric in SIDES.items()
    for last in SHOWN
}


def train(row: tuple, seed: int, output: str) -> dict[str, float]:
    """Trains a tower; returns the mean cosines of each hundred steps.

    Args:
      row: the fields of a `Row`.
      seed: the random seed.
      output: the folder of clusters.
    """
    from big_align.runs import train as runs

    config = cluster_settings.configure(Row(*row), "test", RATE, seed, output)
    with config.unlocked():
        config.evaluators = {}
    with tempfile.TemporaryDirectory() as workdir:
        runs.run(config, workdir)
        return curves.read_windows(pathlib.Path(workdir), SIDES.values(), STEPS, WINDOW)


def measure(seeds: int, output: pathlib.Path) -> dict[str, Found]:
    """Trains what is missing; returns the numbers of each seed, by scale and equation."""

    def prepare() -> None:
        cluster_settings.prepare([Row()], output)

    def make_trial(row: Row, seed: int) -> Trial:
        settings = dict(row=tuple(row), seed=seed, output=str(output))
        return Trial(f"{row.loss}-s{row.scale:g}-{seed}", settings)

    planned = {
        (scale, title): [make_trial(row, seed) for seed in range(seeds)]
        for scale, rows in ROWS.items()
        for title, row in rows.items()
    }
    found = trials.run_rows(planned, train, output, prepare)
    return {scale: {title: found[scale, title] for title in ROWS[scale]} for scale in ROWS}


def plot(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws the mean cosines of all rows against the steps, with their intervals.

    Args:
      found: the numbers of each seed, by scale and equation.
      path: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SIDES), figsize=(9, 3.6))
    steps = curves.list_windows(STEPS, WINDOW)
    for axis, (side, metric) in zip(axes, SIDES.items(), strict=True):
        for color, (scale, rows) in enumerate(found.items()):
            for style, (title, runs) in zip(("--", "-"), rows.items(), strict=True):
                line = dict(color=f"C{color}", linestyle=style, label=f"{title}, {scale}")
                curves.draw(axis, metric, steps, runs, **line)
        axis.set(title=f"{side} cosines", xlabel="step")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing, prints the tables and draws them."""
    parser = trials.make_parser(__doc__)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    found = measure(options.seeds, options.output)
    for scale, rows in found.items():
        trials.print_comparison(COLUMNS, rows, ["eq. 4"], name=scale)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    huge_pages.restart()
    main()
