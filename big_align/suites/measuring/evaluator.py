"""A named data set as an evaluator of a run, which reports its results during training."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from big_align.core.errors import UserError
from big_align.core.nodes import Node
from big_align.data.examples import Source
from big_align.data.images.same_images import SameImages, find_firsts, tell_copies
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import Measured, Show
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.retrieval import Pairs, show_pairs
from big_align.evaluators.text_tuning import ClassEmbeddings
from big_align.evaluators.zero_shot import embed_classes, warn_of_alike
from big_align.suites import catalog
from big_align.suites.benchmark import JUDGED, Benchmark
from big_align.suites.judged.layouts import open_judged
from big_align.suites.measuring import tasks as measuring
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.judged_tasks import list_judged_numbers, measure_judged
from big_align.suites.measuring.outcomes import Outcome
from big_align.suites.measuring.plans import (
    CLASS_TASKS,
    EQUAL_CLASSES,
    TASKS_OF,
    TEXT_TASKS,
    choose_measured,
    open_training,
)
from big_align.suites.measuring.tasks import LabeledSplit, TaskSettings
from big_align.suites.opening import open_split, read_class_list

FEATURE_TASKS = ("linear_probe", "few_shot")


class NamedBenchmark:
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
        return _KINDS[benchmark.task].needs(benchmark, task)

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
        images = _ImageReader(transform, max_broken_fraction, self.task in FEATURE_TASKS)
        kind = _KINDS[self.benchmark.task]
        settings = TaskSettings(shots, draws, equal_classes=equal_classes)
        self._kind = kind(self.benchmark, self.task, data, images, tokenizer, settings, templates)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns."""
        return self._kind.numbers

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """Those that are errors."""
        return tuple(name for name in self.numbers if name.endswith("ece"))

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Embeds all images and texts and returns the numbers."""
        return self.measure(embedder).numbers

    def measure(self, embedder: Embedder) -> Measured:
        """Embeds all images and texts and returns the numbers; pictures show what is found."""
        outcome, show = self.find(embedder)
        return Measured(outcome.numbers, show)

    def find(self, embedder: Embedder) -> tuple[Outcome, Show]:
        """Embeds all images and texts and returns the outcome, and what makes its pictures."""
        return self._kind.measure(embedder)


@dataclasses.dataclass(frozen=True)
class _ImageReader:
    """How the images of a source are read and embedded.

    Attributes:
      transform: image operations, without randomness.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.
      with_features: whether the features before the projection are wanted as well.
    """

    transform: str
    max_broken_fraction: float
    with_features: bool

    def embed(self, embedder: Embedder, source: Source) -> EmbeddedImages:
        rows = embedder.batch_size, embedder.rows
        fraction = self.max_broken_fraction
        with EvalLoader(source, self.transform, *rows, max_broken_fraction=fraction) as loader:
            same = SameImages(loader.num_examples, *rows)
            given = same.watch(loader.images()), loader.num_examples
            if self.with_features:
                embedding, features, readable = embedder.embeddings_and_features(*given)
            else:
                embedding, readable = embedder.embed_images(*given)
                features = embedding[:, :0]
        hashes = same.hashes
        if jax.process_count() > 1:  # each process knows the images of its own rows, others are 0
            hashes = multihost_utils.process_allgather(hashes).max(axis=0)
        return EmbeddedImages(embedding, features, find_firsts(hashes), readable)


@dataclasses.dataclass
class _Kind:
    """Data sets of one kind: how to open one, and what to measure on it and how."""

    benchmark: Benchmark
    task: str
    data: str
    images: _ImageReader
    tokenizer: Tokenizer
    settings: TaskSettings
    templates: tuple[str, ...] | None

    def __post_init__(self) -> None:
        self.measured = choose_measured(self.benchmark)
        self.open()

    @staticmethod
    def needs(benchmark: Benchmark, task: str) -> tuple[str, ...]:
        """Returns the methods of an objective that a task calls."""
        features = ("image_features",) if task in FEATURE_TASKS else ()
        texts = ("embed_text",) if task == "few_shot" or task in TEXT_TASKS else ()
        return "embed_image", *features, *texts

    def open(self) -> None:
        """Opens the data."""
        self.sources = {self.measured: open_split(self.benchmark, self.measured, self.data)}
        self.sources |= open_training(self.benchmark, (self.task,), self.data)
        self.names: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[str, ...]:
        metric = self.benchmark.metric
        return measuring.list_numbers(self.task, metric, len(self.names), self.settings)


class _Judgments(_Kind):
    """Human judgments: which text is right, or how similar two things are."""

    @staticmethod
    def needs(benchmark: Benchmark, task: str) -> tuple[str, ...]:
        if "spearman" in list_judged_numbers(benchmark):  # ratings of words, without images
            return ("text_features",)
        return "embed_image", "embed_text"

    def open(self) -> None:
        self.judged = open_judged(self.benchmark, self.measured, self.data)

    @property
    def numbers(self) -> tuple[str, ...]:
        return list_judged_numbers(self.benchmark)

    def measure(self, embedder: Embedder) -> tuple[Outcome, Show]:
        def embed_texts(texts: Sequence[str], what: str) -> np.ndarray:
            tokens = self.tokenizer(list(texts))
            features = what == "features"
            return embedder.text_features(*tokens) if features else embedder.embed_texts(*tokens)

        source = self.judged.source
        images = None if source is None else self.images.embed(embedder, source)
        return measure_judged(self.judged, self.benchmark.metric, images, embed_texts), list


class _Captions(_Kind):
    """Images and their captions, each of which is used to find the other."""

    def measure(self, embedder: Embedder) -> tuple[Outcome, Show]:
        source = self.sources[self.measured]
        images = self.images.embed(embedder, source)
        tell_copies(images.first, source, self.images.transform)
        fraction = self.images.max_broken_fraction
        captions, owner, number = measuring.pair_captions(source, images, fraction)
        ztxt = embedder.embed_texts(*self.tokenizer(captions))
        pairs = Pairs(images.embedding[number], ztxt, captions, owner, np.asarray(number))
        outcome = measuring.measure_retrieval(pairs, self.benchmark.folds)
        return outcome, lambda: show_pairs(pairs, read_pixels(source))


class _Classes(_Kind):
    """Images and their classes, one or several each."""

    def open(self) -> None:
        super().open()
        self.classes = read_class_list(self.benchmark, self.data)
        self.names = self.classes.names
        if self.task in CLASS_TASKS:
            self.texts = fill_class_templates(self.classes, self.templates)

    def measure(self, embedder: Embedder) -> tuple[Outcome, Show]:
        outcome = self._classify(embedder)
        return outcome, lambda: outcome.confusions

    def _classify(self, embedder: Embedder) -> Outcome:
        classes, metric = self.classes, self.benchmark.metric
        splits = {split: self._read(embedder, split, x) for split, x in self.sources.items()}
        test = splits.pop(self.measured)
        if self.task == "linear_probe":
            given = splits["train"], splits.get("validation"), classes, metric, self.settings
            return measuring.measure_linear_probe(test, *given)
        if self.task == "knn":
            return measuring.measure_knn(test, splits["train"])
        texts, drawn = self.texts, list(splits.values())
        ztxt = embed_classes(embedder, self.tokenizer, texts)
        warn_of_alike(ztxt, texts, self.tokenizer, f"{self.benchmark.name}, {self.task}")
        if self.task == "few_shot":
            return measuring.measure_few_shot(test, drawn, ztxt, self.settings)
        if self.task == "few_shot_text":
            tune = functools.partial(ClassEmbeddings, embedder, self.tokenizer)
            return measuring.measure_few_shot_text(test, drawn, texts, tune, self.settings)
        given = metric, embedder.temperature, self.settings.equal_classes
        return measuring.measure_zero_shot(test, classes, ztxt, *given)

    def _read(self, embedder: Embedder, split: str, source: Source) -> LabeledSplit:
        several = self.benchmark.task == "multilabel"
        fraction = self.images.max_broken_fraction
        label = measuring.read_labels(source, self.classes, several, fraction)
        images = self.images.embed(embedder, source)
        return LabeledSplit(f"{self.benchmark.name} {split}", source, images, label)


_KINDS: dict[str, type[_Kind]] = {
    "classification": _Classes,
    "multilabel": _Classes,
    "retrieval": _Captions,
    **dict.fromkeys(JUDGED, _Judgments),
}
"""Kinds by the task of the data set."""
