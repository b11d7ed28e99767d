"""Captions and labels together, judged on classes without labels: UniCL's Tables 5 and 6.

    python benchmarks/unseen_classes.py --output=workdirs/unseen_classes

UniCL's claim is that labels and captions help each other beyond their own classes. Of the 202
classes of Tiny ImageNet, 140 have labels in training, 20 others choose learning rates, and 42 are
looked at in the end. Captions are Flickr8k's. Towers are small and from scratch
(configs/unicl_flickr8k.py). Rows, all with 800 steps:

  captions             128 pairs a step: CLIP
  labels               128 labeled photographs
  both, half and half  64 and 64, as in Table 6: as many images as above
  both, added          128 and 128, as in Table 5: as many labeled images as `labels`
  both, multi-task     64 and 64, with a linear classifier for labels

Each row has its own learning rate, the best of three for the mean of its numbers on development
data with a training of its own: the 20 classes, Flickr8k's development split, and the groceries'
validation set. Then it is trained once a seed and looks once at the 42 classes, at the 140 (other
photographs of them), at Flickr8k's test split and at the groceries' test set. Numbers are
percentages with the interval of 95% of the mean over the seeds, and differences from `captions` and
`labels`, paired by seed. It needs $BIG_ALIGN_DATA, and continues where it was stopped.
"""

import argparse
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
from big_align import huge_pages

RATES = (5e-4, 1e-3, 2e-3)
BATCH = 128
CLASSES = {"seen": 140, "dev": 20, "test": 42}
ROWS = {
    "captions": ("captions", BATCH),
    "labels": ("labels", BATCH),
    "both, half and half": ("both", BATCH),
    "both, added": ("both", 2 * BATCH),
    "both, multi-task": ("multitask", BATCH),
}
"""The argument of the config, and images of a step."""
COLUMNS = {
    "classes without labels": "zero_shot/top1",
    "classes with labels": "seen/top1",
    "linear probe, groceries": "linear_probe/accuracy",
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
TUNED_BY = tuple(metric for metric in COLUMNS.values() if metric != "seen/top1")


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

    Classes without labels in training give all their photographs.
    """
    from big_align.configs import common

    source = pathlib.Path(common.data_dir(), "tiny_imagenet")
    classes = json.loads((source / "classes.json").read_text())
    shards = {"train": ("seen", "dev", "test"), "val": ("seen_val", "dev", "test")}
    for name, chosen in divide_classes(len(classes)).items():
        listed = [classes[label] | {"label": place} for place, label in enumerate(chosen)]
        place = {label: number for number, label in enumerate(chosen)}
        for split, targets in shards.items():
            target = next(each for each in targets if each.removesuffix("_val") == name)
            relabel(source / f"{split}-00000.tar", output / f"{target}-{split}.tar", place)
        (output / f"{name}.json").write_text(json.dumps(listed))


def relabel(source: pathlib.Path, path: pathlib.Path, place: dict[int, int]) -> None:
    """Copies the images of some classes, with other labels."""
    with tarfile.open(source) as there:
        content = {member.name: there.extractfile(member).read() for member in there}
    keys = [name.removesuffix(".cls") for name in content if name.endswith(".cls")]
    with tarfile.open(path, "w") as here:
        for key in keys:
            label = int(content[f"{key}.cls"])
            if label not in place:
                continue
            label = str(place[label]).encode()
            for name, written in ((f"{key}.jpg", content[f"{key}.jpg"]), (f"{key}.cls", label)):
                info = tarfile.TarInfo(name)
                info.size = len(written)
                here.addfile(info, io.BytesIO(written))


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
        if "classification" in config.evaluators:
            del config.evaluators["classification"]
        zero_shot = config.evaluators.zero_shot.to_dict()
        for name, shards, classes in (
            ("zero_shot", f"{split}-*.tar", split),
            ("seen", "seen_val-val.tar", "seen"),
        ):
            source = zero_shot["source"] | dict(path=f"{folder}/{shards}")
            config.evaluators[name] = zero_shot | dict(
                source=source, names=f"{folder}/{classes}.json"
            )
        if split == "dev":
            flickr8k = two_cores.tar("flickr8k/dev-*.tar", caption="json.captions")
            config.evaluators.retrieval.source = flickr8k
            probe = config.evaluators.linear_probe
            probe.source, probe.validation_source = probe.validation_source, None
            del config.evaluators["seen"]
    return config


def train(**settings) -> dict[str, float]:
    """Trains a model; returns the numbers of its evaluation.

    Args:
      **settings: those of `configure`.
    """
    from big_align.runs import train as runs

    with tempfile.TemporaryDirectory() as workdir:
        found = runs.run(configure(**settings), workdir)
    return {metric: found[metric] for metric in COLUMNS.values() if metric in found}


def print_table(
    title: str, rows: dict[str, list[dict[str, float]]], compared: str | None = None
) -> None:
    """Prints numbers, or their differences from those of a row."""
    print(f"\n{title}\n\n| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|")
    for name, runs in rows.items():
        if name == compared:
            continue
        less = rows[compared] if compared else [dict.fromkeys(run, 0.0) for run in runs]
        cells = [
            trials.format_interval([a[x] - b[x] for a, b in zip(runs, less, strict=True)])
            for x in COLUMNS.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    output = options.output.absolute()
    folder = output / "classes"
    output.mkdir(parents=True, exist_ok=True)

    def prepare() -> None:
        if not folder.exists():
            partial = output / "classes.partial"
            partial.mkdir(exist_ok=True)
            write_classes(partial)
            partial.rename(folder)

    def make_trial(row: str, split: str, rate: float, seed: int) -> Trial:
        method, batch = ROWS[row]
        settings = dict(method=method, batch=batch, split=split, rate=rate, seed=seed)
        name = f"{method}-{batch}-{split}-{rate:g}-{seed}"
        return Trial(name, settings | dict(folder=str(folder)))

    found, rates = trials.tune_and_measure(
        ROWS, RATES, make_trial, TUNED_BY, train, output, options.seeds, prepare
    )
    print_table(f"{options.seeds} seeds", found)
    for compared in ("captions", "labels"):
        print_table(f"less {compared}", found, compared)
    print("\nlearning rates: " + ", ".join(f"{row} {rate:g}" for row, rate in rates.items()))


if __name__ == "__main__":
    huge_pages.restart()
    main()
