"""Measures a model on one named data set."""

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.benchmarks.measuring import tasks as measuring
from big_align.benchmarks.measuring.embeddings import EmbeddedImages, EmbeddingStore
from big_align.benchmarks.measuring.judged_tasks import measure_judged
from big_align.benchmarks.measuring.outcomes import Outcome
from big_align.benchmarks.measuring.plans import BenchmarkPlan, join_settings
from big_align.benchmarks.measuring.results import TASK_NAMES
from big_align.benchmarks.measuring.tasks import LabeledSplit, TaskSettings
from big_align.data.derived.source_pieces import digest_texts
from big_align.data.examples import Source
from big_align.data.labels.prompts import fill_class_templates
from big_align.distributed import agreement
from big_align.evaluators.classifiers.logistic_regression import TOLERANCE
from big_align.evaluators.text_tuning import TUNING, ClassEmbeddings
from big_align.evaluators.zero_shot import warn_of_alike
from big_align.exhibits.exhibit import encode
from big_align.exhibits.retrieval import Pairs
from big_align.inference.loaded_model import LoadedModel
from big_align.training.logs.evaluations import find_version


class Measurer:
    """Measures a model on one benchmark.

    Args:
      model: the model to measure.
      path: path of the model.
      store: embeds with the model.
      plan: the benchmark and its tasks.
      settings: settings of the tasks.
    """

    def __init__(
        self,
        model: LoadedModel,
        path: str,
        store: EmbeddingStore,
        plan: BenchmarkPlan,
        settings: TaskSettings,
    ):
        self._model, self._path, self._store, self._plan = model, path, store, plan
        self._benchmark, self._tasks = plan.benchmark, settings
        self._folders = {split: store.find_folder(x) for split, x in plan.sources.items()}
        self._splits: dict[str, LabeledSplit] = {}
        self._texts: dict[str, str] = {}
        self._seconds = 0.0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks to measure."""
        return self._plan.tasks

    def count_missing(self) -> dict[str, int]:
        """Returns how many images have no embedding yet, by the folder it will be in."""
        return {
            self._folders[split].name: self._store.count_missing(source, self._folders[split])
            for split, source in self._plan.sources.items()
        }

    def settings(self, task: str) -> dict[str, Any]:
        """Returns everything that the numbers of a task depend on."""
        described = self._plan.describe(task)
        folders = {split: self._folders[split].name for split in described["splits"]}
        texts = {split: self._digest_texts(split) for split in described["splits"]}
        described |= {"embeddings": folders, "texts_and_labels": texts}
        described["transform"] = self._store.transform
        if task in ("zero_shot", "few_shot"):
            own = self._model.temperature if task == "zero_shot" else None
            described["temperature"] = own or measuring.TEMPERATURE
            described["texts"] = self._model.embeds("text")
        given = dataclasses.asdict(self._tasks)
        equal_classes = given.pop("equal_classes")
        if task == "zero_shot":
            described["equal_classes"] = equal_classes
        if task in ("linear_probe", "few_shot"):
            described |= given | {"tolerance": TOLERANCE}
        if task == "few_shot_text":
            described |= {name: given[name] for name in ("shots", "draws")}
            described |= {"tuning": dataclasses.asdict(TUNING)}
        return described | {"tokenizer": self._model.tokenizer, "model": self._store.fingerprint}

    def _digest_texts(self, split: str) -> str:
        if split not in self._texts:
            self._texts[split] = digest_texts(self._plan.sources[split])
        return self._texts[split]

    def fingerprint(self, task: str) -> str:
        """Returns a digest of the settings."""
        return hashlib.sha256(join_settings(self.settings(task)).encode()).hexdigest()[:16]

    def embed(self, tasks: Sequence[str]) -> None:
        """Embeds, in every process, the images that tasks read and that have no embedding yet.

        Raises:
          UserError: images cannot be embedded.
        """
        start, splits = time.monotonic(), {s for task in tasks for s in self._plan.splits_of(task)}
        for split, source in self._plan.sources.items():
            if split in splits:
                self._embed_split(split, source)
        self._seconds = time.monotonic() - start

    def measure(self, task: str) -> dict[str, Any]:
        """Measures a task once the images are embedded, and returns its row of the results.

        Raises:
          UserError: labels do not fit, or cannot be measured.
        """
        start = time.monotonic()
        outcome = self._measure_task(task)
        seconds = {"embedding": self._seconds, "measuring": time.monotonic() - start}
        return self._write_row(task, outcome, seconds)

    def _embed_split(self, split: str, source: Source) -> None:
        """Embeds this process's share and waits for the others; all raise the error of any."""
        folder = self._folders[split]
        topic = f"embedded {self._benchmark.name} {split}"
        agreement.attempt(topic, self._store.embed, source, folder)

    def _measure_task(self, task: str) -> Outcome:
        benchmark, settings = self._benchmark, self._tasks
        if task == "retrieval":
            return measuring.measure_retrieval(self._pair(), benchmark.folds)
        if self._plan.judged is not None:
            images = self._read_images(self._plan.measured) if self._plan.sources else None
            given = benchmark.metric, images, self._store.read_texts
            return measure_judged(self._plan.judged, *given)
        classes, test = self._plan.classes, self._read(self._plan.measured)
        if task == "zero_shot":
            given = self._embed_classes(), benchmark.metric, self._model.temperature
            return measuring.measure_zero_shot(test, classes, *given, settings.equal_classes)
        others = {split: self._read(split) for split in self._plan.splits_of(task)[1:]}
        if task == "knn":
            return measuring.measure_knn(test, others["train"])
        drawn = list(others.values())
        if task == "few_shot":
            ztxt = self._embed_classes() if self._model.embeds("text") else None
            return measuring.measure_few_shot(test, drawn, ztxt, settings)
        if task == "few_shot_text":
            self._embed_classes()  # warns of those that are alike
            given = self._make_texts(), self._tune_classes, settings
            return measuring.measure_few_shot_text(test, drawn, *given)
        given = others["train"], others.get("validation"), classes, benchmark.metric, settings
        return measuring.measure_linear_probe(test, *given)

    def _embed_classes(self) -> Float[np.ndarray, "c d"]:
        texts = self._make_texts()
        ztxt = self._store.read_classes(texts)
        warn_of_alike(ztxt, texts, self._model.made_tokenizer, self._benchmark.name)
        return ztxt

    def _make_texts(self) -> list[list[str]]:
        return fill_class_templates(self._plan.classes, self._plan.templates)

    def _tune_classes(self, texts: Sequence[Sequence[str]]) -> ClassEmbeddings:
        return ClassEmbeddings(self._store.embedder, self._model.made_tokenizer, texts)

    def _read(self, split: str) -> LabeledSplit:
        """Reads the embeddings and labels of a split, once for all tasks."""
        if split not in self._splits:
            source = self._plan.sources[split]
            several = self._benchmark.task == "multilabel"
            given = self._plan.classes, several, self._store.max_broken_fraction
            label = measuring.read_labels(source, *given)
            images = self._read_images(split)
            name = f"{self._benchmark.name} {split}"
            self._splits[split] = LabeledSplit(name, source, images, label)
        return self._splits[split]

    def _read_images(self, split: str) -> EmbeddedImages:
        return self._store.read(self._plan.sources[split], self._folders[split])

    def _pair(self) -> Pairs:
        """Embeds the captions of the measured split."""
        split = self._plan.measured
        source = self._plan.sources[split]
        images = self._read_images(split)
        self._store.tell_copies(images, source)
        fraction = self._store.max_broken_fraction
        captions, owner, number = measuring.pair_captions(source, images, fraction)
        return Pairs(
            images.embedding[number], self._store.read_texts(captions), captions, owner, number
        )

    def _write_row(
        self, task: str, outcome: Outcome, seconds: Mapping[str, float]
    ) -> dict[str, Any]:
        benchmark, model = self._benchmark, self._path
        settings = self.settings(task)
        counts = {
            split: int(self._plan.sources[split].shard_sizes.sum())
            for split in self._plan.splits_of(task)
        }
        return {
            "dataset": benchmark.name,
            "title": benchmark.title,
            "model": self._model.description,
            "pretrained": model,
            "model_fullname": f"{self._model.description} {model}",
            "task": TASK_NAMES[task],
            "language": benchmark.language or "en",
            "split": self._plan.measured,
            "images": counts.get(self._plan.measured, 0),
            "images_in_all": benchmark.sizes.get(self._plan.measured),
            "metric": outcome.metric or benchmark.metric,
            "score": outcome.score,
            "metrics": outcome.numbers,
            "counts": counts,
            "tables": list(benchmark.tables),
            "fingerprint": self.fingerprint(task),
            "settings": settings,
            "version": find_version(),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            **outcome.details,
            "confusions": [encode(shown) for shown in outcome.confusions],
        }
