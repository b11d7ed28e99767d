"""iCLIP's question: loss times description, over all classes and captions."""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from experiments import class_splits, pictures
from experiments.class_splits import CLASSES
from experiments.experiment import RECALLS, Experiment, Found, Row, Table
from experiments.training import Shared

EPOCHS, PHOTOGRAPHS = 20, 25  # of the labels; of a class
LOSSES = {
    "UniCL": dict(name="unicl", temperature=0.1),
    "eq. 6": dict(name="iclip", temperature=0.1, direction="image_to_text"),
    "iCLIP": dict(name="iclip", temperature=0.1, direction="both"),
}
TEXTS = {"names": "a photo of a {}", "descriptions": "a photo of a {}, {description}"}  # eq. 5


def _row(loss: str, texts: str) -> Row:
    template, objective = TEXTS[texts], LOSSES[loss]
    if objective["name"] == "iclip":
        objective = objective | dict(template=template)
    steps = EPOCHS * PHOTOGRAPHS * CLASSES["seen"] // 32  # half of a batch of 64 is labeled
    changes = {"objective": objective, "total_steps": steps}
    changes["data.mixture.labels.templates"] = (template,)
    changes["data.mixture.labels.source.path"] = "{output}/classes/seen-train.tar"
    changes["data.mixture.labels.classes"] = f"{{output}}/classes/{_list(texts).format('seen')}"
    return Row(f"{loss}-{texts}".replace(". ", ""), "iclip_tiny_imagenet:unicl", changes)


def _list(texts: str) -> str:
    """Returns the file of the class list of a part, by the texts of a row."""
    return "{}_described.json" if texts == "descriptions" else "{}.json"


def judge(config: Any, row: Row, names: Mapping[str, str]) -> None:
    """Measures classes by texts as the row is trained with; in place."""
    texts = row.key.rpartition("-")[2]
    config.evaluators.zero_shot.templates = (TEXTS[texts],)
    class_splits.judge_classes(config, names, _list(texts))
    if names["split"] == "test":
        few = config.evaluators.zero_shot.to_dict()
        del few["tags"]  # a setting of zero_shot alone
        few |= dict(name="few_shot_text", shots=(1, 4), draws=3)
        folder = f"{names['output']}/classes"
        few["train_source"] = few["source"] | dict(path=f"{folder}/test-train.tar")
        few["source"] = few["source"] | dict(path=f"{folder}/test-val.tar")
        config.evaluators.few_shot = few


def prepare(shared: Shared) -> None:
    """Makes the shards, and the class lists with WordNet's descriptions."""
    from big_align.tools import describe_classes

    class_splits.write_classes(shared)
    folder = shared.output / "classes"
    for part in CLASSES:
        path = folder / f"{part}_described.json"
        if not path.exists():
            given = f"--classes={folder}/{part}.json", f"--output={path}"
            if describe_classes.main(list(given)):
                sys.exit(f"{path} could not be made")


COLUMNS = {
    "classes without labels": "zero_shot/top1",
    "classes with labels": "seen/top1",
    **RECALLS,
}
"""What learning rates are chosen by, and what is looked at in the end."""
SHOTS = (0, 1, 4)
MEASURE = "few_shot/text_encoder_{}shot"
FEW_SHOTS = {
    f"without labels, {shots} shot{'s' * (shots != 1)}": MEASURE.format(shots) for shots in SHOTS
}


def plot_shots(found: dict[str, Found], path: pathlib.Path) -> None:
    """Draws the accuracy on classes without labels against the photographs of each."""
    lines = {}
    for title, runs in found[""].items():
        loss, texts = title.split(", ")
        style = "-" if texts == "descriptions" else "--"
        settings = dict(color=f"C{list(LOSSES).index(loss)}", linestyle=style)
        numbers = {n: [100 * run[MEASURE.format(n)] for run in runs] for n in SHOTS}
        lines[title] = pictures.Line(numbers, settings)
    axes = dict(xlabel="photographs of each class", ylabel="top-1 (%)")
    pictures.draw(path, [(lines, axes)], (6.5, 3.6), ticks=True)


EXPERIMENTS = {
    "described_classes": Experiment(
        question="Do descriptions of classes help, and does classifying over all classes beat UniCL"
        " when a batch holds few of them?",
        paper="iCLIP, Tables 2 and 4",
        page="docs/results/iclip.md",
        needs="Tiny ImageNet, WordNet",
        tables={
            "": Table(
                {f"{loss}, {texts}": _row(loss, texts) for loss in LOSSES for texts in TEXTS},
                # All but the first two were added after numbers were known.
                baselines=(
                    *("UniCL, names", "iCLIP, names", "UniCL, descriptions"),
                    *("iCLIP, descriptions", "eq. 6, names"),
                ),
            )
        },
        columns=COLUMNS | FEW_SHOTS,
        rates=(5e-4, 1e-3, 2e-3, 4e-3),
        chosen_by=tuple(COLUMNS.values()),
        change=judge,
        prepare=prepare,
        plot=plot_shots,
    ),
}
