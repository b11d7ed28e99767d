"""Where learned temperatures go: ALIGN's recipe, LAMB from 1, and AdamW, each from 1 and from 0.07.

    python benchmarks/temperatures.py --output=workdirs/temperatures --plot=temperatures.png

Trainings and learning rates are those of the table `recipe` of benchmarks/align_towers.py, each
with the rate that was its best; in one row more the temperature has five times that rate. Numbers
are means of the temperature over ten steps, in hundredths, with the interval of 95% of the mean
over the seeds. It needs what align_towers.py needs, and continues where it was stopped. --plot=FILE
draws the temperatures against the steps.
"""

import os
import pathlib
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import align_towers, curves, trials
from benchmarks.trials import Trial
from big_align.core import huge_pages


class Row(NamedTuple):
    """What a tower is trained with.

    Attributes:
      recipe: a row of the table `recipe`.
      factor: its best learning rate, times that of its config.
      own: the learning rate of the temperature, times that.
    """

    recipe: str
    factor: float
    own: float = 1.0


ROWS = {
    "LAMB, 1, linear": Row("LAMB, 1, linear", 1.0),
    "AdamW, 1, cosine": Row("AdamW, 1, cosine", 2.0),
    "AdamW, 1, cosine, the temperature's rate x 5": Row("AdamW, 1, cosine", 2.0, own=5.0),
    "LAMB, 0.07, linear": Row("LAMB, 0.07, linear", 1.0),
    "AdamW, 0.07, cosine": Row("AdamW, 0.07, cosine", 2.0),
}
METRIC, WINDOW, STEPS = "temperature", 10, 600
COLUMNS = {f"at step {last}": f"{METRIC}/{last}" for last in (10, 100, 300, 600)}


def configure(row: Row, seed: int, output: str):
    """Returns the config of a training.

    Args:
      row: what it is trained with.
      seed: the random seed.
      output: the folder of features.
    """
    recipe = align_towers.TABLES["recipe"][row.recipe]
    config = align_towers.configure(recipe, "test", row.factor, seed, output)
    with config.unlocked():
        config.evaluators = {}
        if row.own != 1:
            config.optimizer.rates = (f"{METRIC}={row.own:g}",)
    return config


def train(row: tuple, **settings) -> dict[str, float]:
    """Trains a text tower; returns the temperature in each ten steps.

    Args:
      row: the fields of a `Row`.
      **settings: the others of `configure`.
    """
    from big_align.runs import train as runs

    config = configure(Row(*row), **settings)
    with tempfile.TemporaryDirectory() as workdir:
        runs.run(config, workdir)
        return curves.read_windows(pathlib.Path(workdir), [METRIC], STEPS, WINDOW)


def measure(seeds: int, output: pathlib.Path) -> dict[str, curves.Runs]:
    """Trains what is missing; returns the numbers of each seed, by row."""

    def prepare() -> None:
        from big_align.runs.cached_features import cache_features

        row = next(iter(ROWS.values()))
        cache_features(configure(row, 0, str(output)), str(output))

    def make_trial(title: str, seed: int) -> Trial:
        settings = dict(row=tuple(ROWS[title]), seed=seed, output=str(output))
        return Trial(f"{title}-{seed}", settings)

    planned = {title: [make_trial(title, seed) for seed in range(seeds)] for title in ROWS}
    return trials.run_rows(planned, train, output, prepare)


def plot(found: dict[str, curves.Runs], path: pathlib.Path) -> None:
    """Draws the temperatures of all rows against the steps.

    Args:
      found: the numbers of each seed, by row.
      path: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.8))
    steps = curves.list_windows(STEPS, WINDOW)
    for title, runs in found.items():
        curves.draw(axis, METRIC, steps, runs, label=title)
    axis.set(xlabel="step", ylabel="temperature", yscale="log")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing, prints the table and draws it."""
    parser = trials.make_parser(__doc__, seeds=3)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    found = measure(options.seeds, options.output)
    trials.print_table(f"100 x temperature, {options.seeds} seeds", COLUMNS, found)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    huge_pages.restart()
    main()
