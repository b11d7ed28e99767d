"""UniCL's questions: labels alone, captions and labels, classes without labels."""

from collections.abc import Mapping
from typing import Any

from big_align.configs.parts import two_cores
from experiments import class_splits, training
from experiments.experiment import RECALLS, Experiment, Numbers, Row, Table

PAGE = "docs/results/unicl.md"
DEV = {
    "cifar10": {"data.hold_out": 0.1, "evaluators.*.source": {"name": "held_out"}},
    "grocery": {
        "data.hold_out": 0.0,
        "evaluators.*.source": {
            "name": "tar",
            "path": "{data}/grocery/val-*.tar",
            "caption": "",
            "label": "cls",
        },
    },
}
"""What labels are tuned on. Not a part of the training photographs of groceries: those are taken in
series, and a held-out one has a twin of the same class among the others half the time (by 16 x 16
pixels), these one in twelve."""


def _labels(data: str, method: str, before: str = "", probes: Row | None = None) -> Row:
    config, probed = f"unicl_{data}:", probes is not None
    first = Row("", config + before, dev=DEV[data]) if before else None
    key = f"{data}-{before or method}{'_probe' * probed}"
    # A probe would be fitted to what judges it: its row has the rate of the same towers.
    return Row(key, config + method, dev=DEV[data], before=first, tuned_as=probes)


def probe(config: Any, row: Row, names: Mapping[str, str]) -> None:
    """Has a linear probe measure the towers of rows of that kind, as it does SupCon's."""
    if row.key.endswith("_probe"):
        config.evaluators = training.load(f"{row.config.partition(':')[0]}:supcon").evaluators


def measure_accuracy(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns the accuracy of classes, or of a linear probe."""
    ends = "/top1", "/accuracy"
    (accuracy,) = (value for name, value in found.items() if name.endswith(ends))
    return {"top1": accuracy}


def _methods(data: str) -> Table:
    rows = {
        "cross-entropy": _labels(data, "cross_entropy"),
        # The rate is that of the first stage; the classifier's is not tuned.
        "SupCon, then a linear classifier": _labels(data, "supcon_classifier", before="supcon"),
        "UniCL": _labels(data, "unicl"),
    }
    rows |= {
        f"{title.partition(',')[0]}, then a linear probe": _labels(data, method, probes=row)
        for (title, row), method in zip(
            rows.items(), ("cross_entropy", "supcon", "unicl"), strict=True
        )
    }
    probed = "cross-entropy, then a linear probe", "SupCon, then a linear probe"
    return Table(rows, baselines=("cross-entropy", *probed))


TABLE = "UniCL, embedding table"
LABELS = {data: _methods(data) for data in DEV} | {
    "encoders": Table(
        {
            "UniCL": _labels("grocery", "unicl"),
            TABLE: _labels("grocery", "unicl_table"),
            f"{TABLE}, image to text only": _labels("grocery", "unicl_table_image_to_text"),
            f"{TABLE}, text to image only": _labels("grocery", "unicl_table_text_to_image"),
        }
    )
}

BATCH = 128
CIFAR10 = ("airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "boat", "truck")
"""Its classes, by the words that captions have for them."""
PROBE, PROBE_VALIDATION = "linear_probe/accuracy", "linear_probe/validation_accuracy"
UNSEEN = {
    "CIFAR-10 by texts": "cifar10/top1",
    "classes without labels": "zero_shot/top1",
    "classes with labels": "seen/top1",
    "linear probe, groceries": PROBE,
    **RECALLS,
}
"""The first was named before any training; the others describe."""


def _unseen(method: str, times: int = 1) -> Row:
    batch = times * BATCH
    return Row(f"{method}-{batch}", f"unicl_flickr8k:{method}", {"batch_size": batch})


def judge_unseen(config: Any, row: Row, names: Mapping[str, str]) -> None:
    """Takes labels of the classes that have some, and measures the others; in place."""
    split, folder = names["split"], f"{names['output']}/classes"
    if "labels" in config.data.mixture:
        part = config.data.mixture.labels
        part.source.path, part.classes = f"{folder}/seen-train.tar", f"{folder}/seen.json"
    class_splits.judge_classes(config, names)
    evaluators = config.evaluators
    if "classification" in evaluators:  # the row that has a classifier of its own
        classifier = evaluators.classification.to_dict()
        evaluators.seen = classifier | dict(source=evaluators.seen.source)
        del evaluators["classification"]
    shards = {"dev": "cifar10/train-00000.tar", "test": "cifar10/test-*.tar"}[split]
    cifar10 = dict(source=two_cores.tar(shards, caption="", label="cls"), names=CIFAR10)
    evaluators.cifar10 = evaluators.zero_shot.to_dict() | cifar10
    if split == "dev":
        evaluators.linear_probe.source = evaluators.linear_probe.validation_source


def measure_unseen(found: Numbers, workdir: str, split: str) -> Numbers:
    """Returns the measures of `UNSEEN`."""
    if split == "dev":  # the final classifier may have learned these photographs
        found = found | {PROBE: found[PROBE_VALIDATION]}
    return {measure: found[measure] for measure in UNSEEN.values()}


EXPERIMENTS = {
    "labels": Experiment(
        question="Is UniCL as good as cross-entropy and SupCon on labeled data, and do its text"
        " encoder and second direction help?",
        paper="UniCL, Tables 2 and 3",
        page=f"{PAGE}#labels-cross-entropy-supcon-and-unicl",
        needs="CIFAR-10, groceries",
        tables=LABELS,
        columns={"top-1": "top1"},
        rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
        change=probe,
        measure=measure_accuracy,
    ),
    "image_text_label": Experiment(
        question="Can one model learn from captions and labels?",
        paper="UniCL, Tables 5 and 6",
        page=f"{PAGE}#captions-and-labels-together-unicl-and-multi-task",
        needs="Tiny ImageNet, groceries",
        tables={
            "": Table(
                {
                    title: Row(method, f"unicl_flickr8k:{method}")
                    for title, method in {
                        "captions only": "captions",
                        "labels only": "labels",
                        "both, UniCL": "both",
                        "both, separate heads": "multitask",
                    }.items()
                },
                baselines=(),
            )
        },
        columns={
            "202 classes by text": "zero_shot/top1",
            "by a linear head": "classification/top1",
            "linear probe on grocery": PROBE,
            **RECALLS,
        },
        seeds=3,
        name="unicl_flickr8k-{key}-{seed}",
    ),
    "unseen_classes": Experiment(
        question="Do labels and captions help each other beyond the classes that have labels?",
        paper="UniCL, Tables 5 and 6",
        page=f"{PAGE}#classes-without-labels-unicl",
        needs="Tiny ImageNet, CIFAR-10, groceries",
        tables={
            "": Table(
                {
                    "captions": _unseen("captions"),
                    "labels": _unseen("labels"),
                    "both, half and half": _unseen("both"),
                    "both, added": _unseen("both", times=2),
                    "both, multi-task": _unseen("multitask"),
                    "captions, twice": _unseen("captions", times=2),
                    "labels, twice": _unseen("labels", times=2),
                },
                baselines=("captions", "labels", "captions, twice", "labels, twice"),
            )
        },
        columns=UNSEEN,
        rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
        change=judge_unseen,
        prepare=class_splits.write_classes,
        measure=measure_unseen,
    ),
}
