"""What ALIGN's rules do for learning: photographs with noise planted among their texts.

    python benchmarks/noise.py --output=workdirs/noise

Half of the captions of Flickr8k's photographs are replaced, a third of these each by captions of
other photographs, by what pages write beside any picture, and by the same in other languages. Then
`big_align.tools.prepare` cleans all pairs by the rules of ALIGN §3, but for the smallest side: the
photographs have 128 pixels. Rows:

  raw        all pairs
  cleaned    those that the rules keep
  no boilerplate, no wrong captions   what is left of all pairs without one kind of noise, as if
             it were known: which of the two does the harm
  clean      the captions as they were, the ceiling
  clean, 1/2 to 1/8   of as many photographs: Table 10's question, whether more noisy data are worth
             as much as fewer clean ones

Trained are the two linear layers of configs/pretrained_flickr8k.py:frozen, for as many steps in
every row; the learning rate is the best of three for the development split, with a training of its
own, and the test split is looked at once a seed. It needs $BIG_ALIGN_DATA, Apache Beam (.[prepare])
and the packages that the config names. Numbers are recalls at 10 in percent with the interval of
95% of the mean over the seeds.
"""

import functools
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks import layers, trials
from benchmarks.layers import RECALLS
from big_align.core import huge_pages

TRAINED = {"dev": 6000, "test": 7000}  # the first photographs of both splits, by what is looked at
EPOCHS = 30
RATES = (1e-3, 3e-3, 1e-2)
KINDS = ("caption", "of another", "boilerplate", "foreign")
WITHOUT = {"no boilerplate": ("boilerplate", "foreign"), "no wrong captions": ("of another",)}
NOISY = ("raw", "cleaned", *WITHOUT)
ROWS = (*NOISY, "clean", "clean, 1/2", "clean, 1/4", "clean, 1/8")
BOILERPLATE = (
    *("click to enlarge the picture", "image may contain people", "photo of the day", "no caption"),
    *("share this post with friends", "picture {n} of 12", "IMG_{n}.JPG", "view larger image here"),
    *("buy now and get free shipping", "hosted by the image archive", "stock photo number {n}"),
    *(
        "all rights reserved by the owner",
        "subscribe to our daily newsletter",
        "untitled photo {n}",
    ),
)
FOREIGN = (
    *("Bild vergrößern durch Klicken", "Foto des Tages", "jetzt kaufen und Versand sparen"),
    *("cliquez pour agrandir la photo", "image numéro {n}", "tous droits réservés par le site"),
    *("klikněte pro zvětšení obrázku", "fotografie dne na našem webu", "Bild {n} von 12"),
    *(
        "haga clic para ampliar la imagen",
        "foto número {n} del álbum",
        "todos os direitos reservados",
    ),
)


def plant(captions: list[list[str]], seed: int = 0) -> tuple[list[list[str]], np.ndarray]:
    """Replaces half of the captions by noise.

    Returns:
      The texts, and of each the number of its kind in `KINDS` [n k].
    """
    rng = np.random.default_rng(seed)
    shape = len(captions), len(captions[0])
    kinds = np.where(rng.random(shape) < 0.5, rng.integers(1, len(KINDS), shape), 0)
    texts = [list(row) for row in captions]
    for row, place in zip(*np.nonzero(kinds), strict=True):
        if kinds[row, place] == 1:
            other = (row + rng.integers(1, len(captions))) % len(captions)
            texts[row][place] = captions[other][rng.integers(shape[1])]
        else:
            among = BOILERPLATE if kinds[row, place] == 2 else FOREIGN
            texts[row][place] = among[rng.integers(len(among))].format(n=rng.integers(1, 9999))
    return texts, kinds


def read_pairs() -> tuple[list[bytes], list[list[str]]]:
    """Reads the photographs of the training and the development split, with their captions."""
    folder = pathlib.Path(os.environ.get("BIG_ALIGN_DATA", "../shared/data"), "flickr8k")
    images, captions = [], []
    for path in [*sorted(folder.glob("train-*.tar")), *sorted(folder.glob("dev-*.tar"))]:
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member).read()
                if member.name.endswith(".json"):
                    captions.append(json.loads(content)["captions"])
                elif member.name.endswith(".jpg"):
                    images.append(content)
    assert len(images) == len(captions) == TRAINED["test"]
    return images, captions


def make_raw(output: pathlib.Path) -> np.ndarray:
    """Writes the noisy pairs as Parquet, once; returns the kinds of all texts."""
    import pyarrow
    from pyarrow import parquet

    images, captions = read_pairs()
    texts, kinds = plant(captions)
    np.save(output / "kinds.npy", kinds)
    path = output / "raw.parquet"
    if not path.exists():
        partial = path.with_suffix(".partial")
        table = pyarrow.table({"image": images, "caption": texts})
        parquet.write_table(table, partial, row_group_size=500)
        os.replace(partial, path)
    return kinds


def clean(output: pathlib.Path) -> list[list[str]]:
    """Prepares the noisy pairs; returns the texts that are kept of each photograph."""
    shards = output / "shards"
    command = [sys.executable, "-m", "big_align.tools.prepare", "--min_side=none"]
    command += [f"--input={output}/raw.parquet", f"--output={shards}"]
    if code := subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(f"failed with exit status {code}: {' '.join(command)}")
    kept = [[] for _ in range(TRAINED["test"])]
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".json"):
                    about = json.load(io.BytesIO(tar.extractfile(member).read()))
                    kept[about["origin"]["row"]] = about["captions"]
    return kept


def mark_kept(output: pathlib.Path) -> np.ndarray:
    """Returns which texts of which photographs the rules keep [n k]; cleans them the first time."""
    from pyarrow import parquet

    from big_align.prepare.text_rules import normalize_text

    path = output / "kept.npy"
    if not path.exists():
        texts = parquet.read_table(output / "raw.parquet", columns=["caption"])["caption"]
        kept = [
            [normalize_text(text) in left for text in row]
            for row, left in zip(texts.to_pylist(), clean(output), strict=True)
        ]
        np.save(path, np.array(kept))
    return np.load(path)


@functools.cache
def find_texts(output: pathlib.Path) -> str:
    """Computes the features of all noisy texts, once; returns their folder."""
    from big_align.runs.cached_features import cache_features

    config = layers.get_base("test")
    with config.unlocked():
        config.data.source = dict(name="parquet", path=f"{output}/raw.parquet", caption="caption")
        config.cached_features.towers = ("text",)
        config.cached_features.folder = str(output / "features")
    return cache_features(config, str(output)).data.precomputed["text_embedding"]


def find_kept(row: str, output: pathlib.Path) -> np.ndarray:
    """Returns which texts of which photographs a row of noisy pairs trains on [n k]."""
    if row == "cleaned":
        return np.load(output / "kept.npy")
    kinds = np.load(output / "kinds.npy")
    return ~np.isin(kinds, [KINDS.index(kind) for kind in WITHOUT.get(row, ())])


@functools.cache
def make_pairs(row: str, split: str, output: str) -> layers.Pairs:
    """Returns what a row trains on.

    Args:
      row: one of `ROWS`.
      split: the split that is evaluated.
      output: the folder that notes which texts are kept, and what each is.
    """
    photographs, captions = layers.find_features("test", True, f"{output}/features")
    texts = find_texts(pathlib.Path(output)) if row in NOISY else captions
    pairs = layers.read_features(photographs, texts)
    texts, counts = pairs.texts, pairs.counts
    if row in NOISY:
        kept = find_kept(row, pathlib.Path(output))
        order = np.argsort(~kept, axis=1, kind="stable")  # those that are kept come first
        texts, counts = np.take_along_axis(texts, order, axis=1), kept.sum(axis=1)
    chosen = np.arange(TRAINED[split])
    if "/" in row:
        part = TRAINED[split] // int(row.split("/")[1])
        chosen = np.random.default_rng(0).permutation(TRAINED[split])[:part]
    chosen = chosen[counts[chosen] > 0]
    return layers.Pairs(pairs.image[chosen], pairs.text, texts[chosen], counts[chosen])


def train(row: str, split: str, output: str, rate: float, seed: int) -> dict[str, float]:
    """Trains a row; returns the recalls, and how many photographs it has."""
    pairs = make_pairs(row, split, output)
    judged = layers.read_features(*layers.find_features(split, False, f"{output}/features"))
    steps = EPOCHS * TRAINED[split] // layers.BATCH
    trained, _ = layers.train_layers(split, pairs, steps, seed, rate)
    numbers = layers.measure_layers(judged, trained)
    return numbers | {"photographs": len(pairs.image)}


def run_rows(rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains rows and prints their table."""

    def prepare() -> None:
        find_texts(output)
        layers.find_features("test", True, str(output / "features"))
        for split in TRAINED:
            layers.find_features(split, False, str(output / "features"))

    def trial(row: str, split: str, rate: float, seed: int) -> trials.Trial:
        settings = dict(row=row, split=split, rate=rate, seed=seed, output=str(output))
        name = f"{row.replace(', 1/', '_').replace(' ', '_')}-{split}-{rate:g}-{seed}"
        return trials.Trial(name, settings)

    metrics = tuple(RECALLS.values())
    given = RATES, trial, metrics, train, output, seeds
    found, best = trials.tune_and_measure(rows, *given, prepare)
    photographs = {row: runs[0]["photographs"] for row, runs in found.items()}
    notes = {"photographs": photographs, "learning rate": best}
    trials.print_comparison(RECALLS, found, ["raw"], notes)


def main() -> None:
    """Makes what is missing and prints what is kept and what it teaches."""
    options = trials.make_parser(__doc__, rows=ROWS).parse_args()
    kinds, kept = make_raw(options.output), mark_kept(options.output)
    print("\n| texts | planted | kept |\n|---|---|---|")
    for number, kind in enumerate(KINDS):
        mine = kinds == number
        print(f"| {kind} | {mine.sum()} | {kept[mine].mean():.1%} |")
    run_rows(options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
