"""A named data set as an evaluator of a run, which reports it while it trains."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from big_align.benchmarks import catalog
from big_align.benchmarks.benchmark import JUDGED
from big_align.benchmarks.judged.layouts import open_judged
from big_align.benchmarks.measuring import tasks as measuring
from big_align.benchmarks.measuring.embeddings import EmbeddedImages
from big_align.benchmarks.measuring.judged_tasks import list_judged_numbers, measure_judged
from big_align.benchmarks.measuring.outcomes import Outcome
from big_align.benchmarks.measuring.plans import (
    TASKS_OF,
    TEXT_TASKS,
    TRAIN_TASKS,
    choose_measured,
)
from big_align.benchmarks.measuring.tasks import LabeledSplit, TaskSettings
from big_align.benchmarks.opening import open_split, read_class_list
from big_align.data.examples import Source
from big_align.data.images.same_images import SameImages, find_firsts, tell_copies
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.errors import UserError
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.zero_shot import embed_classes
from big_align.exhibits.exhibit import Measured
from big_align.exhibits.pixels import read_pixels
from big_align.exhibits.retrieval import Pairs, show_pairs
from big_align.nodes import Node

FEATURE_TASKS = ("linear_probe", "few_shot")


class NamedBenchmark:
    """What `big_align.tools.benchmark` measures of a data set, of the model as it is.

    Args:
      benchmark: its name.
      data: the folder of all data sets.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      task: "zero_shot", "linear_probe", "few_shot", "knn", "retrieval", "composition" or
        "similarity"; None for the first that fits the data set.
      shots: images a class of few shots.
      draws: of few shots.
      templates: texts with {} where the name of a class goes; None for those that the data set is
        published with.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: there is no such data set, its data are not there, or the task does not fit it.
    """

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Tells which verbs of an objective it calls."""
        named = str(settings["benchmark"])
        kind = catalog.read_benchmark(named).task
        task = settings.get("task") or next(iter(TASKS_OF.get(kind, ())), "")
        features = ("image_features",) if task in FEATURE_TASKS else ()
        if kind in JUDGED and "spearman" in list_judged_numbers(catalog.read_benchmark(named)):
            return ("text_features",)
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
        templates: tuple[str, ...] | None = None,
        max_broken_fraction: float = 0.01,
    ):
        self.benchmark = catalog.read_benchmark(benchmark)
        fit = TASKS_OF.get(self.benchmark.task, ())
        self.task = task or next(iter(fit), "")
        if self.task not in fit:
            known = ", ".join(fit) or "nothing yet"
            raise UserError(f"task = {task!r} does not fit {benchmark}, which is of: {known}")
        self.transform, self.tokenizer = transform, tokenizer
        self.settings = TaskSettings(shots, draws)
        self.max_broken_fraction = max_broken_fraction
        self.names: tuple[str, ...] = ()
        self.texts: list[list[str]] = []
        self.sources: Mapping[str, Source] = {}
        if self.benchmark.task in JUDGED:
            self.judged = open_judged(self.benchmark, choose_measured(self.benchmark), data)
            self.source = self.judged.source
            return
        splits = [choose_measured(self.benchmark)]
        splits += ["train"] if self.task in TRAIN_TASKS else []
        self.sources = {split: open_split(self.benchmark, split, data) for split in splits}
        self.source = self.sources[splits[0]]
        if self.benchmark.task != "retrieval":
            self._classes = read_class_list(self.benchmark, data)
            self.names = self._classes.names
            self.texts = fill_class_templates(self._classes, templates)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of what is measured."""
        if self.benchmark.task in JUDGED:
            return list_judged_numbers(self.benchmark)
        metric, count = self.benchmark.metric, len(self.names)
        return measuring.list_numbers(self.task, metric, count, self.settings)

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Embeds all images and texts and returns the numbers."""
        return self.measure(embedder).numbers

    def measure(self, embedder: Embedder) -> Measured:
        """Embeds all images and texts and returns the numbers; it shows what is found."""
        if self.task == "retrieval":
            pairs = self._pair(embedder)
            outcome = measuring.measure_retrieval(pairs, self.benchmark.folds)
            return Measured(outcome.numbers, lambda: show_pairs(pairs, read_pixels(self.source)))
        if self.benchmark.task in JUDGED:
            return Measured(self._judge(embedder).numbers, lambda: [])
        outcome = self._classify(embedder)
        return Measured(outcome.numbers, lambda: outcome.confusions)

    def _judge(self, embedder: Embedder) -> Outcome:
        def embed_texts(texts: Sequence[str], what: str) -> np.ndarray:
            tokens = self.tokenizer(list(texts))
            features = what == "features"
            return embedder.text_features(*tokens) if features else embedder.embed_texts(*tokens)

        images = None if self.source is None else self._embed(embedder, self.source)
        return measure_judged(self.judged, self.benchmark.metric, images, embed_texts)

    def _classify(self, embedder: Embedder) -> Outcome:
        classes, metric = self._classes, self.benchmark.metric
        test, *train = (self._read(embedder, split) for split in self.sources)
        if self.task == "linear_probe":
            given = classes, metric, self.settings
            return measuring.measure_linear_probe(test, train[0], None, *given)
        if self.task == "knn":
            return measuring.measure_knn(test, train[0])
        ztxt = embed_classes(embedder, self.tokenizer, self.texts)
        if self.task == "few_shot":
            return measuring.measure_few_shot(test, train[0], ztxt, self.settings)
        return measuring.measure_zero_shot(test, classes, ztxt, metric, embedder.temperature)

    def _read(self, embedder: Embedder, split: str) -> LabeledSplit:
        several = self.benchmark.task == "multilabel"
        source = self.sources[split]
        label = measuring.read_labels(source, self._classes, several)
        images = self._embed(embedder, source)
        return LabeledSplit(f"{self.benchmark.name} {split}", source, images, label)

    def _embed(self, embedder: Embedder, source: Source) -> EmbeddedImages:
        rows = embedder.batch_size, embedder.rows
        fraction = self.max_broken_fraction
        with EvalLoader(source, self.transform, *rows, max_broken_fraction=fraction) as loader:
            same = SameImages(loader.num_examples, *rows)
            given = same.watch(loader.images()), loader.num_examples
            if self.task in FEATURE_TASKS:
                embedding, features, readable = embedder.embeddings_and_features(*given)
            else:
                embedding, readable = embedder.embed_images(*given)
                features = embedding[:, :0]
        hashes = same.hashes
        if jax.process_count() > 1:  # each knows the images of its own rows, and has 0 elsewhere
            hashes = multihost_utils.process_allgather(hashes).max(axis=0)
        return EmbeddedImages(embedding, features, find_firsts(hashes), readable)

    def _pair(self, embedder: Embedder) -> Pairs:
        images = self._embed(embedder, self.source)
        tell_copies(images.first, self.source, self.transform)
        captions, owner, number = measuring.pair_captions(self.source, images)
        ztxt = embedder.embed_texts(*self.tokenizer(captions))
        return Pairs(images.embedding[number], ztxt, captions, owner, np.asarray(number))
