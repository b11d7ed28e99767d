"""What ALIGN's rules do for a text tower that has read nothing else: noise.py's question again.

    python benchmarks/noise_text_tower.py --output=workdirs/noise

noise.py puts linear layers behind a sentence encoder, which tells boilerplate from captions before
it is trained. Here the same pairs, noisy, cleaned and clean, train a text tower from scratch behind
a published image tower that is locked (configs/align_flickr8k.py:locked). Rows are noise.py's, and
so is the output folder: what it has made there is used again.

All rows have as many steps. The learning rate is the best of three for the development split, with
a training of its own, and the test split is looked at once a seed. It needs what noise.py needs,
and continues where it was stopped. Numbers are recalls at 10 in percent with the interval of 95% of
the mean over the seeds, and differences from the noisy pairs, paired by seed, with theirs.
"""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import noise, trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

RATES = (5e-4, 1e-3, 2e-3)
NOISY = "raw"
ROWS = (*noise.NOISY, "clean")
RECALLS = {
    "image to text": "retrieval/image_to_text_r10",
    "text to image": "retrieval/text_to_image_r10",
}


def write_pairs(output: pathlib.Path) -> None:
    """Writes the photographs as Parquet, once, with the texts of each row in a column of its name.

    The features of images do not depend on the column that is read, so rows share them.
    """
    import pyarrow
    from pyarrow import parquet

    noise.make_raw(output)
    noise.mark_kept(output)
    images, captions = noise.read_pairs()
    noisy = parquet.read_table(output / "raw.parquet", columns=["caption"])["caption"].to_pylist()
    columns = {"image": images, "clean": captions}
    for row in noise.NOISY:
        kept = noise.find_kept(row, output)
        columns[row] = [
            [text for text, stays in zip(texts, mine, strict=True) if stays]
            for texts, mine in zip(noisy, kept, strict=True)
        ]
    table = pyarrow.table(columns)
    first = noise.TRAINED["dev"]
    for name, part in (("train", table[:first]), ("dev", table[first:])):
        path = name_pairs(name, output)
        if not path.exists():
            partial = path.with_suffix(".partial")
            parquet.write_table(part, partial, row_group_size=500)
            os.replace(partial, path)


def name_pairs(split: str, output: pathlib.Path) -> pathlib.Path:
    """Returns the file of a split."""
    return output / f"pairs-{split}.parquet"


def configure(row: str, split: str, rate: float, seed: int, output: str):
    """Returns the config of a training.

    Args:
      row: one of `ROWS`.
      split: what is measured, "dev" or "test"; what comes before it is trained on.
      rate: learning rate.
      seed: the random seed.
      output: the folder of pairs and features.
    """
    from big_align.configs import align_flickr8k

    config = align_flickr8k.get_config("locked")
    trained = "train" if split == "dev" else "{train,dev}"
    path = str(name_pairs(trained, pathlib.Path(output)))
    with config.unlocked():
        config.seed, config.schedule.learning_rate = seed, rate
        config.cached_features.folder = f"{output}/features"
        config.data.source = dict(name="parquet", path=path, caption=row, image="image")
        config.data.max_broken_fraction = 0.05  # photographs that have no text left
        if split == "dev":
            evaluated = config.evaluators.retrieval.source
            evaluated.path = evaluated.path.replace("test-", "dev-")
    return config


def train(**settings) -> dict[str, float]:
    """Trains a row; returns the recalls.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(**settings), workdir)
    return {name: found[name] for name in RECALLS.values()}


def prepare(output: pathlib.Path) -> None:
    """Makes the pairs, and the features of the photographs by both cores."""
    from big_align.runs.cached_features import cache_features

    write_pairs(output)
    for split in noise.TRAINED:
        cache_features(configure(NOISY, split, RATES[0], 0, str(output)), str(output))


def print_tables(rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains rows and prints their recalls, and how far they are from the noisy pairs."""

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        settings = dict(row=row, split=split, rate=rate, seed=seed, output=str(output))
        return Trial(f"text_tower-{row.replace(' ', '_')}-{split}-{rate:g}-{seed}", settings)

    found, rates = trials.tune_and_measure(
        rows,
        RATES,
        make_trial,
        tuple(RECALLS.values()),
        train,
        output,
        seeds,
        prepare=lambda: prepare(output),
    )
    trials.print_comparison(RECALLS, found, [NOISY], {"learning rate": rates})


def main() -> None:
    """Makes what is missing and prints the tables."""
    options = trials.make_parser(__doc__, rows=ROWS).parse_args()
    print_tables(options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
