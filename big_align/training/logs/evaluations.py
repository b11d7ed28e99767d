"""Evaluations of a run's states, kept in `WORKDIR/evaluations.jsonl`."""

import datetime
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from big_align.core.formats import find_version
from big_align.parallel.distributed import agreement
from big_align.training.logs.line_files import append_line, keep_lines, read_lines
from big_align.training.logs.metrics import finite_or_text

FILE = "evaluations.jsonl"
NEEDS = ("step",)
TRAINING, EVALUATION = "train", "eval"
"""Modes: measured during training, or of a checkpoint afterwards."""


class EvaluationLog:
    """Appends evaluations, JSON objects with what they are about, from the first process only."""

    def __init__(self, workdir: str, mode: str, about: Mapping[str, Any]):
        self._path = pathlib.Path(workdir) / FILE
        self._about = {"mode": mode, **about, "version": find_version()}

    def drop_after(self, step: int) -> None:
        """Drops what training measured after a step and will again; those of checkpoints stay."""
        if jax.process_index() != 0:
            return
        keep_lines(
            self._path,
            lambda found: found.get("mode") != TRAINING or (found["step"] or 0) <= step,
            NEEDS,
        )

    def has(self, step: int) -> bool:
        """Returns, in every process, whether training has measured the state of a step."""
        found = any(
            record.get("mode") == TRAINING and record.get("step") == step
            for record in read_evaluations(self._path.parent)
        )
        return agreement.share(f"evaluated/{step}", found)

    def write(
        self,
        step: int | None,
        numbers: Mapping[str, float],
        seconds: float,
        checkpoint: str | os.PathLike | None,
    ) -> None:
        """Appends an evaluation: with a step if a run trained it, a checkpoint if that is kept."""
        if jax.process_index() != 0:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        record = {
            "time": now,
            "step": step,
            "checkpoint": None if checkpoint is None else os.fspath(checkpoint),
            "seconds": round(seconds, 3),
            "numbers": finite_or_text(numbers),
            **self._about,
        }
        append_line(self._path, record)


def read_evaluations(workdir: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yields the evaluations of a run in order, without lines that cannot be read."""
    return read_lines(pathlib.Path(workdir) / FILE, NEEDS)


def read_training_numbers(workdir: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """Returns what training has measured, by step; steps are texts, as in a JSON object."""
    return {
        str(record["step"]): record["numbers"]
        for record in read_evaluations(workdir)
        if record.get("mode") == TRAINING and isinstance(record.get("numbers"), dict)
    }
