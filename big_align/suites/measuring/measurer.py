"""Measures a model on one named data set."""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.core.formats import find_version
from big_align.data.derived.source_pieces import digest_texts
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.classifiers.logistic_regression import TOLERANCE
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import encode
from big_align.evaluators.text_tuning import TUNING
from big_align.parallel.distributed import agreement
from big_align.suites.measuring import tasks as measuring
from big_align.suites.measuring.embeddings import EmbeddedImages, EmbeddingStore
from big_align.suites.measuring.plan_model import PlanModel
from big_align.suites.measuring.plans import BenchmarkPlan
from big_align.suites.measuring.results import TASK_NAMES
from big_align.suites.measuring.tasks import TaskSettings
from big_align.use.inference.loaded_model import LoadedModel


class Measurer(PlanModel):
    """Measures a model on one benchmark."""

    def __init__(
        self,
        model: LoadedModel,
        path: str,
        store: EmbeddingStore,
        plan: BenchmarkPlan,
        settings: TaskSettings,
    ):
        super().__init__(plan, settings, store.transform, store.max_broken_fraction)
        self._model, self._path, self._store = model, path, store
        self.temperature, self.has_texts = model.temperature, model.embeds("text")
        self._folders = {split: store.find_folder(x) for split, x in plan.sources.items()}
        self._digest_texts = functools.cache(lambda split: digest_texts(plan.sources[split]))
        self._seconds = 0.0

    @property
    def embedder(self) -> Embedder:
        return self._store.embedder

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.made_tokenizer

    def read_images(self, split: str) -> EmbeddedImages:
        return self._store.read(self.plan.sources[split], self._folders[split])

    def read_texts(self, texts: Sequence[str], what: str = "embedding") -> Float[np.ndarray, "n d"]:
        return self._store.read_texts(texts, what)

    def count_missing(self) -> dict[str, int]:
        """Returns how many images have no embedding yet, by the folder it will be in."""
        return {
            self._folders[split].name: self._store.count_missing(source, self._folders[split])
            for split, source in self.plan.sources.items()
        }

    def settings(self, task: str) -> dict[str, Any]:
        """Returns everything that the numbers of a task depend on."""
        described = self.plan.describe(task)
        folders = {split: self._folders[split].name for split in described["splits"]}
        texts = {split: self._digest_texts(split) for split in described["splits"]}
        described |= {"embeddings": folders, "texts_and_labels": texts}
        described["transform"] = self._store.transform
        if task in ("zero_shot", "few_shot"):
            own = self.temperature if task == "zero_shot" else None
            described["temperature"] = own or measuring.TEMPERATURE
            described["texts"] = self.has_texts
        given = dataclasses.asdict(self.task_settings)
        equal_classes = given.pop("equal_classes")
        if task == "zero_shot":
            described["equal_classes"] = equal_classes
        if task in ("linear_probe", "few_shot"):
            described |= given | {"tolerance": TOLERANCE}
        if task == "few_shot_text":
            described |= {name: given[name] for name in ("shots", "draws")}
            described |= {"tuning": dataclasses.asdict(TUNING)}
        return described | {"tokenizer": self._model.tokenizer, "model": self._store.fingerprint}

    def fingerprint(self, task: str) -> str:
        """Returns a digest of the settings."""
        text = json.dumps(self.settings(task), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def embed(self, tasks: Sequence[str]) -> None:
        """Embeds, in every process, the images that tasks read and that have no embedding yet."""
        start, splits = time.monotonic(), {s for task in tasks for s in self.plan.splits_of(task)}
        for split, source in self.plan.sources.items():
            if split in splits:  # all processes raise the error of any
                given = self._store.embed, source, self._folders[split]
                agreement.attempt(f"embedded {self.plan.benchmark.name} {split}", *given)
        self._seconds = time.monotonic() - start

    def measure(self, task: str) -> dict[str, Any]:
        """Measures a task once the images are embedded, and returns its row of the results."""
        start = time.monotonic()
        outcome, _ = self.find_outcome(task)
        seconds = {"embedding": self._seconds, "measuring": time.monotonic() - start}
        benchmark, model = self.plan.benchmark, self._path
        counts = {
            split: int(self.plan.sources[split].shard_sizes.sum())
            for split in self.plan.splits_of(task)
        }
        return {
            "dataset": benchmark.name,
            "title": benchmark.title,
            "model": self._model.description,
            "pretrained": model,
            "model_fullname": f"{self._model.description} {model}",
            "task": TASK_NAMES[task],
            "language": benchmark.language or "en",
            "split": self.plan.measured,
            "images": counts.get(self.plan.measured, 0),
            "images_in_all": benchmark.sizes.get(self.plan.measured),
            "metric": outcome.metric or benchmark.metric,
            "score": outcome.score,
            "metrics": outcome.numbers,
            "counts": counts,
            "tables": list(benchmark.tables),
            "fingerprint": self.fingerprint(task),
            "settings": self.settings(task),
            "version": find_version(),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            **outcome.details,
            "confusions": [encode(shown) for shown in outcome.confusions],
        }
