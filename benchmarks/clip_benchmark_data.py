"""Weights and shards for clip_benchmark.py, made from the folder of data sets.

It is also the config by which main.py makes the weights.
"""

import io
import json
import pathlib
import random
import shutil
import tarfile
from collections.abc import Iterator
from typing import Any

from benchmarks.measuring import run_python
from big_align.config.defaults import complete_config
from big_align.configs import common
from big_align.configs.parts import two_cores
from big_align.data.labels.prompts import fill_class_templates
from big_align.suites import catalog

LARGEST = 211  # the most classes of a data set
TINY_CLASSES, CLASSES = 202, 10  # of Tiny ImageNet, and of the photographs of a small data set
SIZES = {"small": 64, "b32": 224}

Example = tuple[bytes, int]
Split = list[dict[str, bytes]]


def get_config(arg: str = "small"):
    """Returns the config by which main.py makes the weights."""
    size, small = SIZES[arg], arg == "small"
    sizes = dict(width=128, depth=4, heads=2, mlp_dim=512) if small else {}
    config = two_cores.get_base()
    config.batch_size, config.total_steps = (128, 150) if small else (8, 1)
    config.average_decay = None
    config.data.source = two_cores.flickr8k_captions()["source"]
    config.data.transform = f"resize({size})"
    merges = f"{common.data_dir()}/text/clip_bpe_simple_vocab_16e6.txt.gz"
    config.tokenizer = dict(name="clip", merges=merges, length=77)
    config.model.image = dict(
        name="vit", variant="b/8" if small else "b/32", input_norm=True, patch_bias=False,
        activation="gelu", layer_norm_eps=1e-5, **sizes,
    )  # fmt: skip
    config.model.text = dict(
        name="clip_text", variant="b", activation="gelu", **(sizes | {"depth": 2} if small else {})
    )
    config.model.projection_bias = False
    config.model.embedding_dim = 128 if small else 512
    config.objective = dict(name="clip")
    config.schedule.warmup_steps = 20 if small else 0
    view = f"resize_small({size})|central_crop({size})"
    config.evaluators = dict(retrieval=two_cores.retrieval() | {"transform": view})
    return complete_config(config)


def make_model(kind: str, output: pathlib.Path) -> pathlib.Path:
    """Makes a folder of weights in open_clip's layout, once."""
    folder = output / f"open_clip_{kind}"
    if not folder.exists():
        workdir = output / f"model_{kind}"
        config = f"--config=benchmarks/clip_benchmark_data.py:{kind}"
        run_python("main.py", config, f"--workdir={workdir}", "--config.evaluate_every=1000000")
        given = f"--input={workdir}", f"--output={folder}", "--format=open_clip"
        run_python("-m", "big_align.tools.convert", *given)
    return folder


def read_tar(path: pathlib.Path) -> Iterator[dict[str, bytes]]:
    """Yields the members of each example by their endings."""
    key, members = None, {}
    with tarfile.open(path) as tar:
        for info in tar:
            stem, _, ending = info.name.partition(".")
            if stem != key and members:
                yield members
                members = {}
            key, members[ending] = stem, tar.extractfile(info).read()
    if members:
        yield members


def read_labeled(*patterns: str) -> list[Example]:
    """Reads JPEGs with their labels from the folder of data sets."""

    folder = pathlib.Path(common.data_dir())
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    return [(members["jpg"], int(members["cls"])) for path in paths for members in read_tar(path)]


def write_split(folder: pathlib.Path, examples: Split) -> None:
    """Writes two shards, one for each worker, as CLIP_benchmark's exporter names them."""
    folder.mkdir(parents=True)
    (folder / "nshards.txt").write_text("2\n")
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard, len(examples), 2):
                for ending, content in examples[number].items():
                    info = tarfile.TarInfo(f"s{number:07d}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def write_labeled(root: pathlib.Path, own: list[str], splits: dict[str, list[Example]]) -> None:
    """Writes a data set with classes: `train` is what CLIP_benchmark has as `fit` and `val`.

    An example of a class that `fit` lacks goes there: both probes need every class.
    """
    known = {label for _, label in splits["fit"]}
    for name in ("val", "test"):
        splits["fit"] += [x for x in splits[name] if x[1] not in known]
        splits[name] = [x for x in splits[name] if x[1] in known]
    splits["train"] = splits["fit"] + splits["val"]
    for name, examples in splits.items():
        rows = [{"jpg": image, "cls": str(label).encode()} for image, label in examples]
        write_split(root / name, rows)
    (root / "classnames.txt").write_text("".join(f"{name}\n" for name in own))
    (root / "zeroshot_classification_templates.txt").write_text("a photo of a {c}.\n")


def choose_sets() -> dict[str, Any]:
    """Returns the layouts of CIFAR-10 and of the small data sets, by the names of benchmarks.

    Left out are those whose labels are several, or not one for each class.
    """

    chosen = {}
    for name in catalog.names():
        benchmark = catalog.read_benchmark(name)
        for layout in benchmark.layouts:
            fits = layout.kind == "clip_benchmark" and benchmark.task == "classification"
            if not fits or "train" not in layout.splits or len(layout.order) > LARGEST:
                continue
            if sorted(layout.order) == list(range(len(benchmark.classes()))):
                chosen[name] = layout
    return {"cifar10": chosen.pop("cifar10"), **chosen}


def make_data(folder: pathlib.Path, limit: int | None) -> None:
    """Writes all data sets, once; of each split at most `limit` examples."""
    if folder.exists():
        return
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    layouts, rng = choose_sets(), random.Random(0)
    cifar10 = layouts.pop("cifar10")
    train = read_labeled("cifar10/train-*.tar")[: 5 * limit if limit else None]
    fifth = len(train) // 5
    splits = {"fit": train[fifth:], "val": train[:fifth]}
    splits["test"] = read_labeled("cifar10/test-*.tar")[:limit]
    write_labeled(partial / f"wds_{cifar10.name}", list(cifar10.own_names), splits)

    tiny, grocery = read_labeled("tiny_imagenet/*.tar"), read_labeled("grocery/t*.tar")
    pool = tiny + [(image, TINY_CLASSES + label) for image, label in grocery]
    rng.shuffle(pool)
    for number, layout in enumerate(layouts.values()):
        first, count = number * CLASSES, len(layout.order)
        mine = [(x, c - first) for x, c in pool if first <= c < first + CLASSES]
        mine = mine[: 2 * limit if limit else None]
        spread = [place * (count - 1) // (CLASSES - 1) for place in range(CLASSES)]
        labels = spread if count >= CLASSES else [place % count for place in range(CLASSES)]
        labeled = [(image, labels[place]) for image, place in mine]
        half, tenth = len(mine) // 2, len(mine) // 10
        splits = {"test": labeled[:half], "val": labeled[half : half + tenth]}
        splits["fit"] = labeled[half + tenth :]
        write_labeled(partial / f"wds_{layout.name}", list(layout.own_names), splits)

    shard = pathlib.Path(common.data_dir()) / "flickr8k/test-00000.tar"
    captioned = [
        {"jpg": x["jpg"], "txt": "\n".join(json.loads(x["json"])["captions"]).encode()}
        for x in read_tar(shard)
    ]
    write_split(partial / "wds_flickr8k/test", captioned[:limit])
    (partial / "wds_flickr8k/dataset_type.txt").write_text("retrieval\n")
    partial.rename(folder)


def describe_texts(layouts: dict[str, Any]) -> tuple[dict, dict]:
    """Returns what CLIP_benchmark takes for class names and their texts: those of the catalog."""
    names, texts = {}, {}
    for name, layout in layouts.items():
        classes = catalog.read_benchmark(name).classes()
        filled = fill_class_templates(classes, None)  # FER2013 has more of them for some classes
        own = {classes.names[position]: filled[position] for position in layout.order}
        names[layout.name], texts[layout.name] = list(own), own
    return names, texts
