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
from big_align.benchmarks.measuring.outcomes import Outcome
from big_align.benchmarks.measuring.plan_model import PlanModel
from big_align.benchmarks.measuring.plans import BenchmarkPlan, join_settings
from big_align.benchmarks.measuring.results import TASK_NAMES
from big_align.benchmarks.measuring.tasks import TaskSettings
from big_align.data.derived.source_pieces import digest_texts
from big_align.data.examples import Source
from big_align.data.text.tokenizers import Tokenizer
from big_align.distributed import agreement
from big_align.evaluators.classifiers.logistic_regression import TOLERANCE
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.text_tuning import TUNING
from big_align.exhibits.exhibit import encode
from big_align.inference.loaded_model import LoadedModel
from big_align.training.logs.evaluations import find_version


class Measurer(PlanModel):
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
        super().__init__(plan, settings, store.transform, store.max_broken_fraction)
        self._model, self._path, self._store = model, path, store
        self.has_texts = model.embeds("text")
        self._folders = {split: store.find_folder(x) for split, x in plan.sources.items()}
        self._texts: dict[str, str] = {}
        self._seconds = 0.0

    @property
    def embedder(self) -> Embedder:
        return self._store.embedder

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.made_tokenizer

    @property
    def temperature(self) -> float | None:
        return self._model.temperature

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
            own = self._model.temperature if task == "zero_shot" else None
            described["temperature"] = own or measuring.TEMPERATURE
            described["texts"] = self._model.embeds("text")
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

    def _digest_texts(self, split: str) -> str:
        if split not in self._texts:
            self._texts[split] = digest_texts(self.plan.sources[split])
        return self._texts[split]

    def fingerprint(self, task: str) -> str:
        """Returns a digest of the settings."""
        return hashlib.sha256(join_settings(self.settings(task)).encode()).hexdigest()[:16]

    def embed(self, tasks: Sequence[str]) -> None:
        """Embeds, in every process, the images that tasks read and that have no embedding yet.

        Raises:
          UserError: images cannot be embedded.
        """
        start, splits = time.monotonic(), {s for task in tasks for s in self.plan.splits_of(task)}
        for split, source in self.plan.sources.items():
            if split in splits:
                self._embed_split(split, source)
        self._seconds = time.monotonic() - start

    def measure(self, task: str) -> dict[str, Any]:
        """Measures a task once the images are embedded, and returns its row of the results.

        Raises:
          UserError: labels do not fit, or cannot be measured.
        """
        start = time.monotonic()
        outcome, _ = self.find_outcome(task)
        seconds = {"embedding": self._seconds, "measuring": time.monotonic() - start}
        return self._write_row(task, outcome, seconds)

    def _embed_split(self, split: str, source: Source) -> None:
        """Embeds this process's share and waits for the others; all raise the error of any."""
        folder = self._folders[split]
        topic = f"embedded {self.plan.benchmark.name} {split}"
        agreement.attempt(topic, self._store.embed, source, folder)

    def _write_row(
        self, task: str, outcome: Outcome, seconds: Mapping[str, float]
    ) -> dict[str, Any]:
        benchmark, model = self.plan.benchmark, self._path
        settings = self.settings(task)
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
            "settings": settings,
            "version": find_version(),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            **outcome.details,
            "confusions": [encode(shown) for shown in outcome.confusions],
        }
