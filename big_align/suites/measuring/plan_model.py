"""A model on the data of a plan: every task is measured here, for runs and for the command."""

import abc
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from big_align.data.images.same_images import tell_copies
from big_align.data.labels.prompts import fill_class_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import Show
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.retrieval import Pairs, show_pairs
from big_align.evaluators.retrieval import join_captions
from big_align.evaluators.text_tuning import ClassEmbeddings
from big_align.evaluators.zero_shot import average_texts, warn_of_alike
from big_align.suites.measuring import tasks as measuring
from big_align.suites.measuring.embeddings import EmbeddedImages
from big_align.suites.measuring.judged_tasks import measure_judged
from big_align.suites.measuring.outcomes import Outcome
from big_align.suites.measuring.plans import BenchmarkPlan
from big_align.suites.measuring.tasks import LabeledSplit, TaskSettings


class PlanModel(abc.ABC):
    """What tasks need of a model; where embeddings come from, a subclass knows.

    `transform` is None if the model has no image tower.
    """

    embedder: Embedder
    tokenizer: Tokenizer
    temperature: float | None  # what the model divides cosines by, if it is known
    has_texts = True  # whether it has a text tower

    def __init__(
        self,
        plan: BenchmarkPlan,
        settings: TaskSettings,
        transform: str | None,
        max_broken_fraction: float,
    ):
        self.plan, self.task_settings, self.transform = plan, settings, transform
        self.max_broken_fraction = max_broken_fraction
        self._splits: dict[str, LabeledSplit] = {}

    @abc.abstractmethod
    def read_images(self, split: str) -> EmbeddedImages:
        """Returns the embeddings of the images of a split."""

    @abc.abstractmethod
    def read_texts(self, texts: Sequence[str], what: str = "embedding") -> Float[np.ndarray, "n d"]:
        """Returns the "embedding" or the "features" of each text."""

    def find_outcome(self, task: str) -> tuple[Outcome, Show]:
        """Measures a task; returns the outcome, and what makes its pictures."""
        plan = self.plan
        if task == "retrieval":
            pairs = self._pair()
            outcome = measuring.measure_retrieval(pairs, plan.benchmark.folds)
            source = plan.sources[plan.measured]
            return outcome, lambda: show_pairs(pairs, read_pixels(source))
        if plan.judged is not None:
            images = self.read_images(plan.measured) if plan.sources else None
            given = plan.judged, plan.benchmark.metric, images, self.read_texts
            return measure_judged(*given), list
        outcome = self._classify(task)
        return outcome, lambda: outcome.confusions

    def _classify(self, task: str) -> Outcome:
        plan, metric, settings = self.plan, self.plan.benchmark.metric, self.task_settings
        others = {split: self._read(split) for split in plan.splits_of(task)}
        test = others.pop(plan.measured)
        if task == "zero_shot":
            given = self._embed_classes(), metric, self.temperature, settings.equal_classes
            return measuring.measure_zero_shot(test, plan.classes, *given)
        if task == "knn":
            return measuring.measure_knn(test, others["train"])
        if task == "few_shot":
            ztxt = self._embed_classes() if self.has_texts else None
            return measuring.measure_few_shot(test, list(others.values()), ztxt, settings)
        if task == "few_shot_text":
            self._embed_classes()  # warns of those that are alike
            make = functools.partial(ClassEmbeddings, self.embedder, self.tokenizer)
            given = self._make_texts(), make, settings
            return measuring.measure_few_shot_text(test, list(others.values()), *given)
        given = others["train"], others.get("validation"), plan.classes, metric, settings
        return measuring.measure_linear_probe(test, *given)

    def _make_texts(self) -> list[list[str]]:
        return fill_class_templates(self.plan.classes, self.plan.templates)

    def _embed_classes(self) -> Float[np.ndarray, "c d"]:
        texts = self._make_texts()
        ztxt = self.read_texts([text for group in texts for text in group])
        ztxt = average_texts(ztxt, list(map(len, texts)))
        warn_of_alike(ztxt, texts, self.tokenizer, self.plan.benchmark.name)
        return ztxt

    def _read(self, split: str) -> LabeledSplit:
        """Reads the embeddings and labels of a split, once for all tasks."""
        if split not in self._splits:
            benchmark, source = self.plan.benchmark, self.plan.sources[split]
            several, fraction = benchmark.task == "multilabel", self.max_broken_fraction
            label = measuring.read_labels(source, self.plan.classes, several, fraction)
            name = f"{benchmark.name} {split}"
            self._splits[split] = LabeledSplit(name, source, self.read_images(split), label)
        return self._splits[split]

    def _pair(self) -> Pairs:
        """Embeds the captions of the measured split."""
        split = self.plan.measured
        source, images = self.plan.sources[split], self.read_images(split)
        tell_copies(images.first, source, self.transform)
        loader = EvalLoader(source, "resize(1)", 1, max_broken_fraction=self.max_broken_fraction)
        with loader:
            told = loader.captions()
        captions, owner, number = join_captions(told, images.readable, images.first)
        ztxt = self.read_texts(captions)
        return Pairs(images.embedding[number], ztxt, captions, owner, np.asarray(number))
