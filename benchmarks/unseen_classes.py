"""Captions and labels together, judged on classes without labels: UniCL's Tables 5 and 6.

    python benchmarks/unseen_classes.py --output=workdirs/unseen_classes
    python benchmarks/unseen_classes.py --output=... --rows captions labels "both, added"

UniCL's claim is that labels and captions help each other beyond the classes that have labels. Of
the 202 classes of Tiny ImageNet, 140 have labels in training, 20 others choose learning rates, and
42 are looked at in the end. Captions are Flickr8k's. Few of them name any of these 42 classes, so
CIFAR-10 is looked at as well: captions name dogs, cars, boats, horses and birds. Labels never do,
but seven of its classes have kinds among them, such as German shepherd and sports car. What decides
was named before any training: CIFAR-10 by texts, `both, added` less `captions` and less `labels`;
the other columns and rows describe. Towers are small and from scratch (configs/unicl_flickr8k.py).
Rows, all with 800 steps:

  captions             128 pairs a step: CLIP
  labels               128 labeled photographs
  both, half and half  64 and 64, as in Table 6: as many images as above
  both, added          128 and 128: as many labeled images as `labels`, as in Table 5, which
                       takes twice the steps for it
  both, multi-task     64 and 64, with a linear classifier for labels
  captions, twice      256 pairs a step, and
  labels, twice        256 labeled photographs: as many images as `both, added`

Each row has its own learning rate, the best of five for the mean of its numbers on development data
with a training of its own: the 20 classes, half of the validation photographs of the 140, a fifth
of CIFAR-10's training images, Flickr8k's development split, and the groceries' validation set. Then
it is trained once a seed and looks once at the 42 classes, at the other half of those photographs,
at CIFAR-10's test images, Flickr8k's test split and the groceries' test set. Classes with labels
are told by the linear classifier in the row that has one, and by texts in the others. Numbers are
percentages with the interval of 95% of the mean over the seeds, and differences from the rows of
one kind, paired by seed. It needs $BIG_ALIGN_DATA, and continues where it was stopped.
"""

import io
import json
import os
import pathlib
import random
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks import trials
from benchmarks.trials import Trial
from big_align.core import huge_pages

RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
BATCH = 128
CLASSES = {"seen": 140, "dev": 20, "test": 42}
ROWS = {
    "captions": ("captions", BATCH),
    "labels": ("labels", BATCH),
    "both, half and half": ("both", BATCH),
    "both, added": ("both", 2 * BATCH),
    "both, multi-task": ("multitask", BATCH),
    "captions, twice": ("captions", 2 * BATCH),
    "labels, twice": ("labels", 2 * BATCH),
}
"""The argument of the config, and images of a step."""
BASELINES = ("captions", "labels", "captions, twice", "labels, twice")
"""What other rows are compared with."""
PROBE, PROBE_VALIDATION = "linear_probe/accuracy", "linear_probe/validation_accuracy"
COLUMNS = {
    "CIFAR-10 by texts": "cifar10/top1",
    "classes without labels": "zero_shot/top1",
    "classes with labels": "seen/top1",
    "linear probe, groceries": PROBE,
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
CIFAR10 = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "boat", "truck")
"""Its classes, by the words that captions have for them."""


def divide_classes(count: int) -> dict[str, list[int]]:
    """Returns which classes have labels in training, and which choose and judge."""
    order = random.Random(0).sample(range(count), count)
    parts = {}
    for name, size in CLASSES.items():
        parts[name], order = sorted(order[:size]), order[size:]
    assert not order, "CLASSES leaves classes out"
    return parts


def write_classes(output: pathlib.Path) -> None:
    """Writes shards and a class list of each part, once; labels count from 0 in each.

    Classes without labels in training give all their photographs. Of the others, one half of the
    validation photographs is for development.
    """
    from big_align.configs import common

    if output.exists():
        return
    source = pathlib.Path(common.data_dir(), "tiny_imagenet")
    classes = json.loads((source / "classes.json").read_text())
    halves = {"seen_dev": slice(0, None, 2), "seen_test": slice(1, None, 2)}
    partial = output.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name, chosen in divide_classes(len(classes)).items():
        listed = [classes[label] | {"label": place} for place, label in enumerate(chosen)]
        place = {label: number for number, label in enumerate(chosen)}
        relabel(source / "train-00000.tar", partial / f"{name}-train.tar", place)
        for target, part in (halves if name == "seen" else {name: slice(None)}).items():
            relabel(source / "val-00000.tar", partial / f"{target}-val.tar", place, part)
        (partial / f"{name}.json").write_text(json.dumps(listed))
    partial.rename(output)


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


def judge_classes(config, split: str, folder: str, lists: str = "{}.json") -> None:
    """Measures classes without labels and those with them, by their names; in place.

    Args:
      config: a config with the evaluators `zero_shot` and `retrieval`.
      split: what is measured, "dev" or "test".
      folder: that of `write_classes`.
      lists: the file of the class list of a part in it.
    """
    from big_align.configs import two_cores

    zero_shot = config.evaluators.zero_shot.to_dict()
    for name, shards, classes in (
        ("zero_shot", f"{split}-*.tar", split),
        ("seen", f"seen_{split}-val.tar", "seen"),
    ):
        source = zero_shot["source"] | dict(path=f"{folder}/{shards}")
        names = f"{folder}/{lists.format(classes)}"
        config.evaluators[name] = zero_shot | dict(source=source, names=names)
    flickr8k = two_cores.tar(f"flickr8k/{split}-*.tar", caption="json.captions")
    config.evaluators.retrieval.source = flickr8k


def configure(method: str, batch: int, split: str, rate: float, seed: int, folder: str):
    """Returns the config of a training.

    Args:
      method: the argument of the config.
      batch: images of a step.
      split: what is measured, "dev" or "test".
      rate: learning rate.
      seed: the random seed.
      folder: the shards and class lists of `write_classes`.
    """
    from big_align.configs import two_cores, unicl_flickr8k

    config = unicl_flickr8k.get_config(method)
    with config.unlocked():
        config.batch_size, config.seed = batch, seed
        config.schedule.learning_rate = rate
        if "labels" in config.data.mixture:
            part = config.data.mixture.labels
            part.source.path, part.classes = f"{folder}/seen-train.tar", f"{folder}/seen.json"
        judge_classes(config, split, folder)
        if "classification" in config.evaluators:
            classifier = config.evaluators.classification.to_dict()
            config.evaluators.seen = classifier | dict(source=config.evaluators.seen.source)
            del config.evaluators["classification"]
        shards = {"dev": "cifar10/train-00000.tar", "test": "cifar10/test-*.tar"}[split]
        cifar10 = dict(source=two_cores.tar(shards, caption="", label="cls"), names=CIFAR10)
        config.evaluators.cifar10 = config.evaluators.zero_shot.to_dict() | cifar10
        if split == "dev":
            probe = config.evaluators.linear_probe
            probe.source = probe.validation_source
    return config


def train(**settings) -> dict[str, float]:
    """Trains a model; returns the numbers of its evaluation.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(**settings), workdir)
    if settings["split"] == "dev":  # the final classifier may have learned these photographs
        found = found | {PROBE: found[PROBE_VALIDATION]}
    return {metric: found[metric] for metric in COLUMNS.values()}


def print_tables(rows: list[str], seeds: int, output: pathlib.Path) -> None:
    """Tunes and trains rows; prints their numbers, and how far apart they are."""
    folder = output / "classes"

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        method, batch = ROWS[row]
        settings = dict(method=method, batch=batch, split=split, rate=rate, seed=seed)
        name = f"{method}-{batch}-{split}-{rate:g}-{seed}"
        return Trial(name, settings | dict(folder=str(folder)))

    found, rates = trials.tune_and_measure(
        rows,
        RATES,
        make_trial,
        tuple(COLUMNS.values()),
        train,
        output,
        seeds,
        prepare=lambda: write_classes(folder),
    )
    trials.print_comparison(COLUMNS, found, BASELINES, {"learning rate": rates})


def main() -> None:
    """Runs what is missing and prints the tables."""
    options = trials.make_parser(__doc__, rows=ROWS).parse_args()
    print_tables(options.rows, options.seeds, options.output)


if __name__ == "__main__":
    huge_pages.restart()
    main()
