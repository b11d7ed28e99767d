"""What to measure: benchmarks with available data, and the tasks that fit them."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from big_align.core.errors import UserError, suggest
from big_align.data.examples import Source
from big_align.data.labels.classes import ClassList
from big_align.data.labels.prompts import choose_templates
from big_align.data.labels.templates import asks_description
from big_align.suites import catalog
from big_align.suites.benchmark import JUDGED, Benchmark
from big_align.suites.judged.judgments import Judged
from big_align.suites.judged.layouts import open_judged
from big_align.suites.opening import MissingData, open_split, open_validation, read_class_list

TASKS = ("zero_shot", "linear_probe", "few_shot", "few_shot_text", "knn", "retrieval", *JUDGED)
DEFAULT_TASKS = ("zero_shot", "retrieval", *JUDGED)
TASKS_OF = {
    "classification": ("zero_shot", "linear_probe", "few_shot", "few_shot_text", "knn"),
    "multilabel": ("zero_shot", "linear_probe"),
    "retrieval": ("retrieval",),
    **{task: (task,) for task in JUDGED},
}
"""The tasks that can be measured on a benchmark, by its own task."""
TEXT_TASKS = ("zero_shot", "few_shot_text", "retrieval", *JUDGED)
CLASS_TASKS = ("zero_shot", "few_shot", "few_shot_text")
"""The tasks that read texts of classes, if the model has a text tower."""
TRAIN_TASKS = ("linear_probe", "few_shot", "few_shot_text", "knn")
VALIDATION_TASKS = ("linear_probe", "few_shot", "few_shot_text")
EQUAL_CLASSES = ("wrong", "first")
"""What `zero_shot` may take classes of one text for: the images of all are wrong, or the first."""


@dataclasses.dataclass(frozen=True)
class BenchmarkPlan:
    """A benchmark with available data."""

    benchmark: Benchmark
    measured: str  # "test", or "validation" if there is no other
    sources: Mapping[str, Source]  # that the tasks read, `measured` first; none without images
    tasks: tuple[str, ...]
    classes: ClassList | None
    judged: Judged | None = None  # None for other benchmarks
    templates: tuple[str, ...] | None = None  # of class texts; None for those of the class list

    def describe(self, task: str) -> dict[str, Any]:
        """Returns what a task's numbers depend on besides model and images, as JSON values."""
        benchmark = self.benchmark
        described = {"dataset": benchmark.name, "task": task, "split": self.measured}
        described |= {"metric": benchmark.metric, "splits": self.splits_of(task)}
        if self.judged is not None:
            return described | {"judgments": self.judged.digest(), "language": benchmark.language}
        if self.classes is None:
            return described | {"folds": benchmark.folds, "language": benchmark.language}
        described |= {"classes": list(self.classes.names)}
        if task not in CLASS_TASKS:
            return described
        templates = choose_templates(self.classes, self.templates)
        described |= {"templates": list(templates)}
        if any(map(asks_description, templates)):
            described |= {"descriptions": list(self.classes.descriptions)}
        return described | ({"synonyms": s} if (s := self.classes.synonyms) else {})

    def splits_of(self, task: str) -> list[str]:
        """Returns the splits that a task reads."""
        others = ["train", "validation"] if task in VALIDATION_TASKS else ["train"]
        wanted = [self.measured, *(others if task in TRAIN_TASKS else [])]
        return [split for split in dict.fromkeys(wanted) if split in self.sources]


def check_tasks(tasks: Iterable[str]) -> tuple[str, ...]:
    """Returns tasks in their usual order; raises a UserError for none, and for an unknown one."""
    wanted = set(tasks)
    if not wanted:
        raise UserError(f"--tasks names nothing; known: {', '.join(TASKS)}")
    if unknown := sorted(wanted - set(TASKS)):
        raise UserError(
            f"--tasks has {unknown[0]!r}{suggest(unknown[0], TASKS)}; known: {', '.join(TASKS)}"
        )
    return tuple(task for task in TASKS if task in wanted)


def choose_measured(benchmark: Benchmark) -> str:
    """Returns the split to measure: "test", or "validation" if there is no other."""
    return "test" if "test" in benchmark.splits else "validation"


def open_plan(
    benchmark: Benchmark, task: str, data: str, templates: tuple[str, ...] | None = None
) -> BenchmarkPlan:
    """Opens all that a task reads."""
    measured, classes = choose_measured(benchmark), None
    if benchmark.task in JUDGED:
        judged = open_judged(benchmark, measured, data)
        sources = {} if judged.source is None else {measured: judged.source}
        return BenchmarkPlan(benchmark, measured, sources, (task,), None, judged)
    sources = {measured: open_split(benchmark, measured, data)}
    sources |= open_training(benchmark, (task,), data)
    if benchmark.task != "retrieval":
        classes = read_class_list(benchmark, data)
    return BenchmarkPlan(benchmark, measured, sources, (task,), classes, templates=templates)


def make_plan(
    name: str,
    tasks: Sequence[str],
    data: str,
    towers: Collection[str],
    index_dir: str | None = None,
    templates: tuple[str, ...] | None = None,
) -> tuple[BenchmarkPlan | None, list[str]]:
    """Opens the data of a benchmark, if any of the tasks can be measured by a model's towers.

    `index_dir` is a folder that keeps scans of shards for the next start. Also returns a line for
    each part that cannot be measured.
    """
    benchmark = catalog.read_benchmark(name)
    fit = [task for task in tasks if task in TASKS_OF[benchmark.task]]
    if not fit:
        known = ", ".join(TASKS_OF[benchmark.task])
        return None, [f"{name}: is of {benchmark.task}, which is measured by {known}"]
    lines = []
    needs = {"image": fit if benchmark.has_images else [], "text": TEXT_TASKS}
    for tower, needing in needs.items():
        if tower not in towers and (lost := [task for task in fit if task in needing]):
            lines.append(
                f"{name}: the model has no {tower} tower, which {' and '.join(lost)} needs"
            )
            fit = [task for task in fit if task not in lost]
    if "train" not in benchmark.splits and (lost := [t for t in fit if t in TRAIN_TASKS]):
        lines.append(f"{name}: it has no images to train on, which {' and '.join(lost)} needs")
        fit = [task for task in fit if task not in lost]
    if not fit:
        return None, lines
    measured = choose_measured(benchmark)
    try:
        if benchmark.task in JUDGED:
            return open_plan(benchmark, *fit, data), lines
        sources = {measured: open_split(benchmark, measured, data, index_dir)}
        classes = None if benchmark.task == "retrieval" else read_class_list(benchmark, data)
    except MissingData as error:
        return None, [*lines, str(error)]
    try:
        sources |= open_training(benchmark, fit, data, index_dir)
    except MissingData as error:
        lines.append(str(error))
        fit = [task for task in fit if task not in TRAIN_TASKS]
    reading = [task for task in fit if task in CLASS_TASKS and "text" in towers]
    if classes is not None and reading:
        try:
            choose_templates(classes, templates)
        except UserError as error:
            lines.append(f"{name}: {error}")
            fit = [task for task in fit if task not in reading]
    if not fit:
        return None, lines
    given = benchmark, measured, sources, tuple(fit), classes
    return BenchmarkPlan(*given, templates=templates), lines


def open_training(
    benchmark: Benchmark, tasks: Collection[str], data: str, index_dir: str | None = None
) -> dict[str, Source]:
    """Opens the splits that tasks fit classifiers to, and choose settings by.

    They are "train" if a task reads it; and "validation" for linear probes, which choose settings
    by it, and for few shots, which are drawn from both, if there is such a split. If there is none,
    or it is what is measured, linear probes take a fifth of the training images instead.
    """
    if not any(task in TRAIN_TASKS for task in tasks):
        return {}
    sources = {"train": open_split(benchmark, "train", data, index_dir)}
    wanted = any(task in VALIDATION_TASKS for task in tasks)
    if wanted and choose_measured(benchmark) != "validation":
        validation = open_validation(benchmark, data, index_dir)
        if validation is not None:
            sources["validation"] = validation
    return sources
