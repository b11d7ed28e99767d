"""Measures a model on named data sets, one after the other, and stores every result."""

import dataclasses
import logging
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from big_align.core.errors import UserError
from big_align.models.dual_encoder import TOWERS
from big_align.parallel.distributed import agreement
from big_align.runs import workdir
from big_align.suites.measuring.embeddings import EmbeddingStore
from big_align.suites.measuring.measurer import Measurer
from big_align.suites.measuring.plans import BenchmarkPlan, make_plan
from big_align.suites.measuring.results import ResultFiles, WorkdirLog
from big_align.suites.measuring.tasks import TaskSettings
from big_align.suites.measuring.trained_on import TrainedExamples
from big_align.use.inference.loaded_model import LoadedModel


@dataclasses.dataclass(frozen=True)
class Order:
    """What to measure, and how.

    Benchmarks come with their templates; None for those in which the model's run has trained class
    texts, or else those of the class list.
    """

    model: str  # its path
    benchmarks: Mapping[str, tuple[str, ...] | None]
    tasks: Sequence[str]  # from `plans.TASKS`
    data: str  # the folder with all data sets
    settings: TaskSettings = TaskSettings()
    allow_trained: bool = False  # measures splits that it was trained on
    index_dir: str | None = None  # keeps scans of shards for the next start


@dataclasses.dataclass
class RunReport:
    """The results of an order; what is missing or failed is a benchmark, or a task of it."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # including earlier ones
    measured: int = 0  # results of this call
    missing: int = 0  # without data, or unfit for the model
    failed: int = 0  # ended in an error


def run_benchmarks(
    order: Order, model: LoadedModel, store: EmbeddingStore, files: ResultFiles
) -> RunReport:
    """Measures what is not among the results yet; each result is written as soon as it is known."""
    report = RunReport()
    plans, log = _make_plans(order, model, report), WorkdirLog(order.model)
    measurers = _make_measurers(order, model, store, plans, report)
    clock = _Clock([measurer.count_missing() for measurer in measurers.values()])
    for number, (name, measurer) in enumerate(measurers.items(), start=1):
        there = _find_results(measurer, name, files, report)
        todo = agreement.share(f"todo of {name}", [task for task in there if not there[task]])
        if todo:
            _say(f"[{number} of {len(measurers)}] {name}: {', '.join(todo)}{clock.tell()}")
            new = _measure_all(measurer, todo, name, files, report)
            log.write(list(new.values()))
            there |= new
        clock.advance()
        report.rows += [row for row in there.values() if row]
    return report


def _make_measurers(
    order: Order,
    model: LoadedModel,
    store: EmbeddingStore,
    plans: Sequence[BenchmarkPlan],
    report: RunReport,
) -> dict[str, Measurer]:
    """Returns what measures each benchmark whose images can be read, by name."""
    measurers = {}
    for plan in plans:
        name, given = plan.benchmark.name, (model, order.model, store, plan, order.settings)
        try:
            measurers[name] = agreement.attempt(f"images of {name}", Measurer, *given)
        except UserError as error:
            _fail(name, error, report)
    return measurers


def _find_results(
    measurer: Measurer, name: str, files: ResultFiles, report: RunReport
) -> dict[str, dict[str, Any] | None]:
    """Returns what is there already for each task; nothing if its labels cannot be read."""

    def find() -> dict[str, dict[str, Any] | None]:
        return {
            task: files.find(name, task, measurer.fingerprint(task)) for task in measurer.plan.tasks
        }

    try:
        return agreement.attempt(f"labels of {name}", find)
    except UserError as error:
        _fail(name, error, report)
        return {}


def _measure_all(
    measurer: Measurer, tasks: Sequence[str], name: str, files: ResultFiles, report: RunReport
) -> dict[str, dict[str, Any]]:
    """Measures tasks in the first process, and returns the row of each that could be measured."""
    rows = {}
    try:
        measurer.embed(tasks)
    except UserError as error:
        _fail(name, error, report)
        return rows
    for task in tasks if jax.process_index() == 0 else ():
        try:
            rows[task] = measurer.measure(task)
        except UserError as error:
            _say(f"{name}, {task}: {error}")
            report.failed += 1
            continue
        files.add([rows[task]])
        report.measured += 1
    return rows


def _make_plans(order: Order, model: LoadedModel, report: RunReport) -> list[BenchmarkPlan]:
    """Opens the data of every benchmark first, so that missing data are reported at once.

    What not all processes find is left out: they would wait for each other.
    """
    plans, trained = [], None if order.allow_trained else _open_trained(order.model)
    towers = [part for part in TOWERS if model.embeds(part)]
    for name, templates in order.benchmarks.items():
        texts = model.trained_templates if templates is None else templates
        try:
            given = order.data, towers, order.index_dir, texts
            plan, lines = make_plan(name, order.tasks, *given)
            if plan is not None and trained is not None:
                _check_trained(plan, trained, order.model)
        except UserError as error:
            plan, lines = None, []
            _fail(name, error, report)
        for line in lines:
            _say(line)
        report.missing += len(lines)
        plans += [plan] if plan is not None else []
    mine = {plan.benchmark.name: [*plan.tasks, *sorted(plan.sources)] for plan in plans}
    everyone = agreement.gather("benchmarks", mine)
    agreed = [name for name in mine if all(each.get(name) == mine[name] for each in everyone)]
    for name in (name for name in mine if name not in agreed):
        told = "not all processes find the same data of it: see that each reads the same --data"
        _fail(name, UserError(told), report)
    return [plan for plan in plans if plan.benchmark.name in agreed]


def _open_trained(path: str) -> TrainedExamples | None:
    if not workdir.recognize_workdir(pathlib.Path(path)):
        return None
    try:
        return TrainedExamples(pathlib.Path(path))
    except (UserError, OSError) as error:
        logging.warning("whether %s was trained on test data is not known: %s", path, error)
        return None


def _check_trained(plan: BenchmarkPlan, trained: TrainedExamples, model: str) -> None:
    source = plan.sources.get(plan.measured)
    if found := trained.find(source) if source is not None else []:
        raise UserError(
            f"{model} was trained on its {plan.measured} split: {len(found)} of some examples of "
            f"it, {found[0]} the first, are in the training data; --allow_trained measures it all "
            "the same"
        )


def _say(line: str) -> None:
    if jax.process_index() == 0:
        print(line, flush=True)


def _fail(name: str, error: UserError, report: RunReport) -> None:
    """Says why a benchmark cannot be measured; the message may begin with its name already."""
    _say(f"{name}: {str(error).removeprefix(f'{name}: ')}")
    report.failed += 1


class _Clock:
    """Estimates the time left from the number of images to be embedded."""

    def __init__(self, missing: list[dict[str, int]]):
        seen: set[str] = set()
        self._counts = []
        for folders in missing:  # images that benchmarks share are embedded for the first of them
            self._counts.append(sum(n for name, n in folders.items() if name not in seen))
            seen |= folders.keys()
        self._done, self._start = 0, time.monotonic()

    def advance(self) -> None:
        """Records that another benchmark is done."""
        self._done += 1

    def tell(self) -> str:
        """Returns "; 500 images to embed, about 5 min left", or as much of it as is known."""
        spent = sum(self._counts[: self._done])
        left = sum(self._counts[self._done :])
        images = f"; {left:,} images to embed" if left else ""
        if not spent or not left:
            return images
        seconds = (time.monotonic() - self._start) * left / spent
        minutes = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
        return f"{images}, about {minutes} left"
