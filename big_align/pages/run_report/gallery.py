"""The pictures of a run: what its evaluations show, kept in the workdir and passed to logs."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jaxtyping import UInt8

from big_align.core.errors import UserError
from big_align.core.whole_files import write_whole
from big_align.evaluators.exhibits.exhibit import (
    Distributions,
    Exhibit,
    Show,
    continue_distributions,
    encode,
)
from big_align.pages.plots.exhibit_pictures import draw_exhibit
from big_align.pages.run_report.run_record import read_pictures

FILE = "pictures.json"
TIMES = 20
"""Largest number of times per run that pictures are made, which bounds time and log sizes."""


class Gallery:
    """Collects what evaluations show, only in the first process.

    The newest pictures are in the workdir's `pictures.json`. They are always made after the last
    step, and those of the data, which are no evaluation's, once at the start. A picture that cannot
    be made is a warning: it never stops a run.
    """

    def __init__(self, workdir: str, total_steps: int, data: Mapping[str, Show]):
        self._path = pathlib.Path(workdir) / FILE
        self._total_steps = total_steps
        self._made_at: int | None = None
        self._due = False
        self._shown: dict[str, list[Exhibit]] = {}
        self._data: dict[str, list[Exhibit]] = {}
        if jax.process_index() == 0 and data:
            for name, show in data.items():
                self._data |= _try_to_show(name, show)
            self._write(self._read())

    def begin(self, step: int) -> None:
        """Begins the evaluation of a step."""
        since = self._total_steps if self._made_at is None else step - self._made_at
        far = TIMES * since >= self._total_steps
        self._due = jax.process_index() == 0 and (far or step == self._total_steps)
        self._shown = {}

    def add(self, name: str, show: Show) -> None:
        """Makes the exhibits of an evaluation, if pictures are due."""
        if self._due:
            self._shown |= _try_to_show(name, show)

    def finish(self, step: int) -> dict[str, UInt8[np.ndarray, "h w 3"]]:
        """Writes the pictures of the step that was evaluated, and returns them by name for logs."""
        if not self._due:
            return {}
        self._made_at = step
        try:
            self._add_earlier_steps(step)
            self._write({"step": step, "exhibits": _encode_all(self._shown)})
            return {
                f"{name}/{exhibit.title}": draw_exhibit(exhibit)
                for name, exhibits in (*self._shown.items(), *self._data.items())
                for exhibit in exhibits
            }
        except Exception as error:
            logging.warning("no pictures: %s: %s", type(error).__name__, error)
            return {}

    def _add_earlier_steps(self, step: int) -> None:
        """Gives distributions those that the workdir keeps of earlier steps."""
        before = self._read()["exhibits"]
        for name, exhibits in self._shown.items():
            kept = {x["title"]: x for x in before.get(name, ()) if "shares" in x}
            self._shown[name] = [
                continue_distributions(x, step, kept.get(x.title))
                if isinstance(x, Distributions)
                else x
                for x in exhibits
            ]

    def _read(self) -> dict[str, Any]:
        nothing = {"step": 0, "exhibits": {}}
        try:
            return read_pictures(self._path) or nothing
        except UserError:
            return nothing  # it is written anew

    def _write(self, evaluated: dict[str, Any]) -> None:
        pictures = {**evaluated, "data": _encode_all(self._data)}
        write_whole(self._path, json.dumps(pictures).encode() + b"\n")


def _encode_all(shown: Mapping[str, list[Exhibit]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [encode(x) for x in exhibits] for name, exhibits in shown.items()}


def _try_to_show(name: str, show: Show) -> dict[str, list[Exhibit]]:
    """Makes exhibits, by the name of the evaluator; returns none if that fails."""
    try:
        return {name: list(show())}
    except Exception as error:
        logging.warning("no pictures of %s: %s: %s", name, type(error).__name__, error)
        return {}
