"""A named data set as an evaluator of a run, which reports its results during training."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float

from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.data.images.same_images import SameImages, find_firsts
from big_align.data.labels.prompts import choose_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import Measured, Show
from big_align.suites import catalog
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.judged_tasks import list_judged_numbers
from big_align.suites.measuring.means import average_results
from big_align.suites.measuring.outcomes import Outcome
from big_align.suites.measuring.plan_model import PlanModel
from big_align.suites.measuring.plans import (
    CLASS_TASKS,
    EQUAL_CLASSES,
    TASKS_OF,
    TEXT_TASKS,
    open_plan,
)
from big_align.suites.measuring.tasks import TaskSettings, list_numbers

FEATURE_TASKS = ("linear_probe", "few_shot")


class _Named:
    """An evaluator of data sets that have names."""

    numbers: tuple[str, ...]

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """Those that are errors."""
        return tuple(name for name in self.numbers if name.endswith("ece"))

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Measures without pictures."""
        return self.measure(embedder).numbers


class NamedBenchmark(_Named):
    """What `big_align.tools.benchmark` measures on a data set, for the current model.

    Args:
      benchmark: name of the data set.
      data: the folder with all data sets.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      task: "zero_shot", "linear_probe", "few_shot", "few_shot_text", "knn", "retrieval",
        "composition" or "similarity"; None for the first that fits the data set.
      shots: images per class for few-shot classification.
      draws: number of draws for few-shot classification.
      equal_classes: "wrong" or "first", what zero-shot classification takes classes of one text
        for.
      templates: texts with {} in place of the name of a class, and perhaps {description}; None for
        those that the data set is published with.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: there is no such data set, its data are missing, or the task does not fit it.
    """

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        named = str(settings["benchmark"])
        benchmark = catalog.read_benchmark(named)
        task = settings.get("task") or TASKS_OF[benchmark.task][0]
        if "spearman" in list_judged_numbers(benchmark):  # ratings of words, without images
            return ("text_features",)
        features = ("image_features",) if task in FEATURE_TASKS else ()
        texts = ("embed_text",) if task == "few_shot" or task in TEXT_TASKS else ()
        return "embed_image", *features, *texts

    def __init__(
        self,
        benchmark: str,
        data: str,
        transform: str,
        tokenizer: Tokenizer,
        task: str | None = None,
        shots: tuple[int, ...] = (1, 2, 4, 8, 16),
        draws: int = 3,
        equal_classes: str = EQUAL_CLASSES[0],
        templates: tuple[str, ...] | None = None,
        max_broken_fraction: float = 0.01,
    ):
        self.benchmark = catalog.read_benchmark(benchmark)
        fit = TASKS_OF[self.benchmark.task]
        if task and task not in fit:
            known = ", ".join(fit)
            raise UserError(f"task = {task!r} does not fit {benchmark}, which is of: {known}")
        self.task = task or fit[0]
        self._plan = open_plan(self.benchmark, self.task, data, templates)
        settings = TaskSettings(shots, draws, equal_classes=equal_classes)
        self._given = self._plan, settings, transform, max_broken_fraction
        self._tokenizer = tokenizer
        if self.task in CLASS_TASKS:
            choose_templates(self._plan.classes, templates)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        if self._plan.judged is not None:
            return list_judged_numbers(self.benchmark)
        count = len(self._plan.classes or ())
        return list_numbers(self.task, self.benchmark.metric, count, self._given[1])

    def measure(self, embedder: Embedder) -> Measured:
        """Embeds all images and texts and returns the numbers; pictures show what is found."""
        outcome, show = self.find(embedder)
        return Measured(outcome.numbers, show)

    def find(self, embedder: Embedder) -> tuple[Outcome, Show]:
        """Embeds all images and texts and returns the outcome, and what makes its pictures."""
        features = self.task in FEATURE_TASKS
        model = _EmbeddingModel(embedder, self._tokenizer, features, *self._given)
        return model.find_outcome(self.task)


class _EmbeddingModel(PlanModel):
    """The current model of a run, which embeds everything anew."""

    def __init__(self, embedder: Embedder, tokenizer: Tokenizer, features: bool, *given: Any):
        super().__init__(*given)
        self.embedder, self.tokenizer, self._features = embedder, tokenizer, features
        self.temperature = embedder.temperature

    def read_images(self, split: str) -> EmbeddedImages:
        embedder, fraction = self.embedder, self.max_broken_fraction
        rows, source = (embedder.batch_size, embedder.rows), self.plan.sources[split]
        with EvalLoader(source, self.transform, *rows, max_broken_fraction=fraction) as loader:
            same = SameImages(loader.num_examples, *rows)
            given = same.watch(loader.images()), loader.num_examples
            if self._features:
                embedding, features, readable = embedder.embeddings_and_features(*given)
            else:
                embedding, readable = embedder.embed_images(*given)
                features = embedding[:, :0]
        hashes = same.hashes
        if jax.process_count() > 1:  # each process knows the images of its own rows, others are 0
            hashes = multihost_utils.process_allgather(hashes).max(axis=0)
        return EmbeddedImages(embedding, features, find_firsts(hashes), readable)

    def read_texts(self, texts: Sequence[str], what: str = "embedding") -> Float[np.ndarray, "n d"]:
        features = what == "features"
        embed = self.embedder.text_features if features else self.embedder.embed_texts
        return embed(*self.tokenizer(list(texts)))


class NamedSuite(_Named):
    """What a paper reports of a suite: its measure on each data set, and the mean of them.

    Args:
      suite: name of the suite.
      data: the folder with all data sets.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      task: a task that fits all of its data sets, as in `NamedBenchmark`.
      shots: images per class for few-shot classification.
      draws: number of draws for few-shot classification.
      equal_classes: as in `NamedBenchmark`.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: there is no such suite, data are missing, or the task does not fit a data set.
    """

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        task = settings.get("task", "zero_shot")
        called = [
            method
            for name in catalog.read_suite(str(settings["suite"])).names
            for method in NamedBenchmark.needs({"benchmark": name, "task": task})
        ]
        return tuple(dict.fromkeys(called))

    def __init__(
        self,
        suite: str,
        data: str,
        transform: str,
        tokenizer: Tokenizer,
        task: str = "zero_shot",
        shots: tuple[int, ...] = (1, 2, 4, 8, 16),
        draws: int = 3,
        equal_classes: str = EQUAL_CLASSES[0],
        max_broken_fraction: float = 0.01,
    ):
        self.suite = catalog.read_suite(suite)
        given = data, transform, tokenizer, task, shots, draws, equal_classes
        self.benchmarks = {
            name: NamedBenchmark(name, *given, self.suite.templates.get(name), max_broken_fraction)
            for name in self.suite.names
        }

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns: means, and after them those of each data set."""
        all_names = [each.numbers for each in self.benchmarks.values()]
        shared = [name for name in all_names[0] if all(name in names for names in all_names)]
        each = [f"{name}/{number}" for name, x in self.benchmarks.items() for number in x.numbers]
        return "score", *shared, *each

    def measure(self, embedder: Embedder) -> Measured:
        """Measures all data sets, one after the other; pictures are those of each."""
        numbers, rows, shows = {}, [], []
        for name, each in self.benchmarks.items():
            outcome, show = each.find(embedder)
            metric = outcome.metric or each.benchmark.metric
            rows.append({"metric": metric, "score": outcome.score, "metrics": outcome.numbers})
            numbers |= {f"{name}/{number}": value for number, value in outcome.numbers.items()}
            shows.append(show)
        mean = average_results(rows, self.suite.measure)
        means = {"score": mean["score"], **mean["metrics"]}
        return Measured(means | numbers, lambda: [shown for show in shows for shown in show()])
