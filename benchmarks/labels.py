"""Cross-entropy, SupCon and UniCL on labeled photographs: UniCL's Tables 2 and 3, each row tuned.

    python benchmarks/labels.py --output=workdirs/labels                      # both data sets
    python benchmarks/labels.py --output=... --data grocery --rows cross-entropy UniCL

Towers are small and trained from scratch on two cores: CIFAR-10 (configs/unicl_cifar10.py), the
paper's own data set, and 81 classes of groceries (configs/unicl_grocery.py). Each row has its own
learning rate, the best of seven for the accuracy on validation images, with a training of its own;
then it is trained once a seed, and looks at the test set once. Validation images are those of the
groceries, and a tenth of CIFAR-10's training images, which are then left out of training. SupCon is
trained in two stages: the rate is that of the first, and its linear classifier is the same in all
trials: 300 steps at a rate of 0.01. That is not tuned, so other rows measure the same towers, at
the same rates, by a linear probe: a logistic regression, fitted to its minimum, whose
regularization is chosen on a fifth of the training images. Numbers are top-1 accuracies in percent
with the interval of 95% of the mean over the seeds, and differences from the first of the rows and
from probes, paired by seed, with theirs: cross-entropy for Table 2, UniCL for Table 3. It needs
$BIG_ALIGN_DATA, and continues where it was stopped.
"""

import importlib
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
HELD_OUT = 0.1
DATA = {"cifar10": "unicl_cifar10", "grocery": "unicl_grocery"}
VALIDATION = {"unicl_grocery": "grocery/val-*.tar"}
"""Not a part of the training photographs: those are taken in series, and a held-out one has a twin
of the same class among the others half the time (by 16 x 16 pixels), these one in twelve."""
SUPCON = "SupCon, then a linear classifier"
PROBED = {
    "cross-entropy, then a linear probe": "cross-entropy",
    "SupCon, then a linear probe": SUPCON,
    "UniCL, then a linear probe": "UniCL",
}
"""Rows whose towers are those of another row, by it."""
ROWS = {
    "cross-entropy": ("cross_entropy",),
    SUPCON: ("supcon", "supcon_classifier"),
    "UniCL": ("unicl",),
    "cross-entropy, then a linear probe": ("cross_entropy",),
    "SupCon, then a linear probe": ("supcon",),
    "UniCL, then a linear probe": ("unicl",),
    "UniCL, embedding table": ("unicl_table",),
    "UniCL, embedding table, image to text only": ("unicl_table_image_to_text",),
    "UniCL, embedding table, text to image only": ("unicl_table_text_to_image",),
}
"""The stages of each row, as arguments of the config; each starts from the tower of the last."""


def configure(config: str, method: str, split: str, seed: int, probed: bool = False):
    """Returns the config of a stage.

    Args:
      config: the file of the config.
      method: its argument.
      split: what is measured, "dev" or "test".
      seed: the random seed.
      probed: whether a linear probe measures the tower, as it does SupCon's.
    """
    from big_align.configs import two_cores

    get_config = importlib.import_module(f"big_align.configs.{config}").get_config
    made = get_config(method)
    source = dict(name="held_out")
    if config in VALIDATION:
        source = two_cores.tar(VALIDATION[config], caption="", label="cls")
    with made.unlocked():
        made.seed = seed
        if probed:
            made.evaluators = get_config("supcon").evaluators
        if split == "dev":
            made.data.hold_out = 0.0 if config in VALIDATION else HELD_OUT
            for evaluator in made.evaluators.values():
                evaluator.source = source
    return made


def train(
    config: str, stages: tuple[str, ...], split: str, rate: float, seed: int, probed: bool
) -> dict[str, float]:
    """Trains the stages of a row and returns the accuracy of the last.

    Args:
      config: the file of the config.
      stages: the arguments of the config.
      split: as in `configure`.
      rate: learning rate of the first stage.
      seed: the random seed.
      probed: as in `configure`, of the last stage.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as folder:
        for number, method in enumerate(stages):
            stage = configure(config, method, split, seed, probed)
            with stage.unlocked():
                if number:
                    stage.init.image = f"{folder}/{number - 1}"
                else:
                    stage.schedule.learning_rate = rate
                if number + 1 < len(stages):
                    stage.evaluators = {}
            found = runs.run(stage, f"{folder}/{number}")
    ends = "/top1", "/accuracy"  # of classes, and of a linear probe
    (accuracy,) = (value for name, value in found.items() if name.endswith(ends))
    return {"top1": accuracy}


def print_tables(data: str, rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains rows on a data set; prints accuracies, and how far from the first."""

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        if row in PROBED and split == "dev":  # a probe would be fitted to what judges it
            row = PROBED[row]
        settings = dict(config=DATA[data], stages=ROWS[row], split=split, rate=rate, seed=seed)
        settings["probed"] = row in PROBED
        method = ROWS[row][0] + "_probe" * settings["probed"]
        return Trial(f"{data}-{method}-{split}-{rate:g}-{seed}", settings)

    columns = {"top-1": "top1"}
    given = RATES, make_trial, tuple(columns.values()), train, output, seeds
    found, rates = trials.tune_and_measure(rows, *given)
    baselines = [rows[0], *[row for row in rows[1:] if row in PROBED][:-1]]
    trials.print_comparison(columns, found, baselines, {"learning rate": rates}, data)


def main() -> None:
    """Runs what is missing and prints the tables."""
    options = trials.make_parser(__doc__, data=DATA, rows=ROWS).parse_args()
    for data in options.data:
        print_tables(data, options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
