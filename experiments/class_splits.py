"""Classes of Tiny ImageNet that have labels in training, and others that choose and judge."""

import io
import json
import pathlib
import random
import tarfile
from collections.abc import Mapping
from typing import Any

from big_align.configs import common
from big_align.configs.parts import two_cores
from experiments.training import Shared

CLASSES = {"seen": 140, "dev": 20, "test": 42}
"""Those with labels in training, those that choose learning rates, and those that judge."""


def divide_classes(count: int) -> dict[str, list[int]]:
    """Returns which classes have labels in training, and which choose and judge."""
    order = random.Random(0).sample(range(count), count)
    parts = {}
    for name, size in CLASSES.items():
        parts[name], order = sorted(order[:size]), order[size:]
    assert not order, "CLASSES leaves classes out"
    return parts


def write_classes(shared: Shared) -> None:
    """Writes shards and a class list of each part, once; labels count from 0 in each.

    Classes without labels in training give all their photographs. Of the others, one half of the
    validation photographs is for development.
    """
    if (folder := shared.output / "classes").exists():
        return
    source = pathlib.Path(common.data_dir(), "tiny_imagenet")
    classes = json.loads((source / "classes.json").read_text())
    halves = {"seen_dev": slice(0, None, 2), "seen_test": slice(1, None, 2)}
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name, chosen in divide_classes(len(classes)).items():
        listed = [classes[label] | {"label": place} for place, label in enumerate(chosen)]
        place = {label: number for number, label in enumerate(chosen)}
        relabel(source / "train-00000.tar", partial / f"{name}-train.tar", place)
        for target, part in (halves if name == "seen" else {name: slice(None)}).items():
            relabel(source / "val-00000.tar", partial / f"{target}-val.tar", place, part)
        (partial / f"{name}.json").write_text(json.dumps(listed))
    partial.rename(folder)


def relabel(
    source: pathlib.Path, path: pathlib.Path, place: dict[int, int], part: slice = slice(None)
) -> None:
    """Copies the images of some classes, or a part of them, with other labels."""
    with tarfile.open(source) as there:
        content = {member.name: there.extractfile(member).read() for member in there}
    labels = {
        name.removesuffix(".cls"): place.get(int(label))
        for name, label in content.items()
        if name.endswith(".cls")
    }
    keys = [key for key, label in labels.items() if label is not None]
    with tarfile.open(path, "w") as here:
        for key in keys[part]:
            label = str(labels[key]).encode()
            for name, written in ((f"{key}.jpg", content[f"{key}.jpg"]), (f"{key}.cls", label)):
                info = tarfile.TarInfo(name)
                info.size = len(written)
                here.addfile(info, io.BytesIO(written))


def judge_classes(config: Any, names: Mapping[str, str], lists: str = "{}.json") -> None:
    """Measures classes without labels and those with them, by their names; in place.

    The config has the evaluators `zero_shot` and `retrieval`. `names` is what texts of an
    experiment may hold, and `lists` the file of the class list of a part.
    """
    zero_shot, split = config.evaluators.zero_shot.to_dict(), names["split"]
    for name, shards, classes in (
        ("zero_shot", f"{split}-*.tar", split),
        ("seen", f"seen_{split}-val.tar", "seen"),
    ):
        folder = f"{names['output']}/classes"
        source = zero_shot["source"] | dict(path=f"{folder}/{shards}")
        listed = f"{folder}/{lists.format(classes)}"
        config.evaluators[name] = zero_shot | dict(source=source, names=listed)
    flickr8k = two_cores.tar(f"flickr8k/{split}-*.tar", caption="json.captions")
    config.evaluators.retrieval.source = flickr8k
