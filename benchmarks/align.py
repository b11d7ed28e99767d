"""ALIGN's studies, asked of pairs of real photographs and captions: batch size, and Table 8.

    python benchmarks/align.py --output=workdirs/align                  # all tables
    python benchmarks/align.py --output=... --tables batch --seeds=5

Both towers are published ones and locked (configs/pretrained_flickr8k.py:frozen), and the two
linear layers behind them are trained, so a run takes a minute and answers for these layers, not for
towers from scratch. All rows see the photographs equally often. Each has its own learning rate, the
best of four for the development split with a training of its own on the training split; then it is
trained on both, once a seed, and looks at the test split once. The tables:

  batch        the batch, of 32 to 1024 pairs; and with negatives lost: as many pairs per step, with
               gradients averaged over 32 pairs at a time, as in plain accumulation
  dimension    Table 8, rows 1 to 4: the dimension of the embedding
  negatives    Table 8, rows 5 and 6: the fraction of the batch that takes part in a softmax
  temperature  Table 8, rows 7 to 9: learned and fixed

It needs $BIG_ALIGN_DATA and the packages that the config names. --plot=FILE draws `batch`.
Numbers are recalls at 10 in percent, with the interval of 95% of the mean over the seeds, and
differences from the first row, paired by seed, with theirs.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


from benchmarks import layers, trials
from benchmarks.layers import RECALLS
from benchmarks.trials import Trial
from big_align.core import huge_pages

EPOCHS = 30
LOST = 32
DEFAULTS = dict(batch=layers.BATCH, negatives=1.0, dimension=512, temperature=0)
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
BATCHES = (32, 64, 128, 256, 512, 1024)
TABLES = {
    "batch": {
        **{f"{size}": dict(batch=size) for size in BATCHES},
        **{
            f"{size}, negatives lost": dict(batch=size, negatives=LOST / size)
            for size in BATCHES[1:]
        },
    },
    "dimension": {f"{size}": dict(dimension=size) for size in (512, 256, 128, 64)},
    "negatives": {f"{part:g}": dict(negatives=part) for part in (1.0, 0.5, 0.25)},
    "temperature": {
        "learned": {},
        **{f"1/{scale}": dict(temperature=1 / scale) for scale in (128, 64, 32, 16)},
    },
}


def train(split: str, folder: str, seed: int, rate: float, **settings: float) -> dict[str, float]:
    """Trains the layers of a trial and measures them.

    Args:
      split: the split that is evaluated, "dev" or "test".
      folder: where features lie.
      seed: the random seed.
      rate: learning rate.
      **settings: other arguments of `layers.train_layers`.

    Returns:
      Recalls by name, and the temperature in the end.
    """
    pairs = layers.read_features(*layers.find_features(split, True, folder))
    judged = layers.read_features(*layers.find_features(split, False, folder))
    steps = round(EPOCHS * len(pairs.image) / settings["batch"])
    trained, last = layers.train_layers(split, pairs, steps, seed, rate, **settings)
    return layers.measure_layers(judged, trained) | {"temperature": last}


def run_table(
    rows: dict[str, dict], seeds: int, output: pathlib.Path
) -> tuple[dict[str, list[dict]], dict[str, float]]:
    """Tunes and trains the rows of a table; returns what each seed found, and learning rates."""
    folder = str(output / "features")

    def prepare() -> None:
        for split in ("dev", "test"):
            for seen in (True, False):
                layers.find_features(split, seen, folder)

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        settings = DEFAULTS | rows[row] | dict(rate=rate, seed=seed)
        name = "-".join(f"{key[0]}{value:g}" for key, value in settings.items())
        return Trial(f"{split}-{name}", settings | dict(split=split, folder=folder))

    metrics = tuple(RECALLS.values())
    given = LEARNING_RATES, make_trial, metrics, train, output, seeds
    return trials.tune_and_measure(rows, *given, prepare)


def plot_batches(found: dict[str, list[dict]], path: pathlib.Path) -> None:
    """Draws the recall against the batch, with all negatives and with those of 32 pairs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for axis, (title, metric) in zip(axes, RECALLS.items(), strict=True):
        for lost, label in (
            (False, "all negatives"),
            (True, "those of 32 pairs (gradients averaged)"),
        ):
            names = [n for n in found if ("lost" in n) == lost or n == str(LOST)]
            points = [
                trials.measure_interval([100 * each[metric] for each in found[name]])
                for name in names
            ]
            sizes = [int(name.split(",")[0]) for name in names]
            axis.errorbar(
                sizes, [p[0] for p in points], [p[1] for p in points], marker="o", capsize=3,
                label=label,
            )  # fmt: skip
        axis.set(xscale="log", xlabel="pairs in a step", ylabel="R@10 (%)", title=title)
        axis.set_xticks(BATCHES, BATCHES)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = trials.make_parser(__doc__, tables=TABLES)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    for name in options.tables:
        found, rates = run_table(TABLES[name], options.seeds, options.output)
        first = [next(iter(found))]
        trials.print_comparison(RECALLS, found, first, {"learning rate": rates}, name)
        if name == "batch" and options.plot:
            plot_batches(found, options.plot)


if __name__ == "__main__":
    huge_pages.restart()
    main()
