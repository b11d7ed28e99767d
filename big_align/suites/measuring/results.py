"""Files of results: JSON with everything, and CSV with the columns of CLIP_benchmark."""

import csv
import io
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from big_align.core.errors import UserError, WrongValue, put_in_a_line
from big_align.core.regular_files import read_regular
from big_align.core.whole_files import lock_folder, write_whole
from big_align.data.json_texts import read_json
from big_align.runs import workdir
from big_align.suites.measuring.means import add_means
from big_align.training.logs.evaluations import EVALUATION, EvaluationLog
from big_align.training.logs.metrics import finite_or_text

TASK_NAMES = {
    "zero_shot": "zeroshot_classification",
    "linear_probe": "linear_probe",
    "few_shot": "few_shot",
    "few_shot_text": "few_shot_text",
    "knn": "knn",
    "retrieval": "zeroshot_retrieval",
    "composition": "image_caption_selection",
    "similarity": "similarity",
}
"""CLIP_benchmark's names of our tasks; tasks that it lacks keep their names."""

FIRST = (
    *("dataset", "model", "pretrained", "task", "split"),
    *("images", "images_in_all", "metric", "score"),
)
KNOWN = (
    *("acc1", "acc5", "mean_per_class_recall", "mean_average_precision", "map_11_point"),
    *("roc_auc", "mean_top1_top5", "ece"),
    *(f"image_retrieval_recall@{k}" for k in (1, 5, 10)),
    *(f"text_retrieval_recall@{k}" for k in (1, 5, 10)),
    *("mean_recall", "acc", "text_acc", "image_acc", "group_acc"),
    *("lp_acc1", "lp_acc5", "lp_mean_per_class_recall"),
)
"""Columns of numbers, in this order; others follow in the order in which they occur."""
LAST = ("language", "model_fullname", "fingerprint")
TEXTS = ("dataset", "title", "task", "model", "pretrained", "model_fullname", "fingerprint")
NEEDS = {
    **dict.fromkeys((*TEXTS, "metric"), (str, "text")),
    "images": (int, "whole number"),
    "score": (int | float | str, "number"),  # NaN and infinity are texts
    **dict.fromkeys(("metrics", "settings"), (dict, "object")),
}
"""What rows must have to be found again, and to be shown: its type, and the name of that."""


class ResultFiles:
    """The results of any number of models and data sets, in a CSV and a JSON next to it.

    It continues from the JSON.
    """

    def __init__(self, path: str):
        self.path, self.rows = pathlib.Path(path), []
        if self.path.suffix != ".csv":
            raise WrongValue(f"--output={path} must end in .csv; a .json is written beside it")
        self.json = self.path.with_suffix(".json")
        if self.json.is_file():
            self.rows = read_rows(self.json)
        elif self.path.exists():
            raise UserError(
                f"{self.path} is there, and {self.json.name}, from which it would be continued, is "
                "not: move it away, or give another --output"
            )

    def find(self, dataset: str, task: str, fingerprint: str) -> dict[str, Any] | None:
        """Returns the result of a model with the given settings; None if there is none."""
        wanted = {"dataset": dataset, "task": TASK_NAMES[task], "fingerprint": fingerprint}
        same = (row for row in self.rows if all(row[k] == v for k, v in wanted.items()))
        return next(same, None)

    def begin(self) -> None:
        """Makes the folder, and writes the CSV again if it lacks results of the JSON.

        A kill between the two files leaves it without the last one.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with lock_folder(self.path.parent):
                there = read_rows(self.json) if self.json.is_file() else []
                lines = read_regular(self.path).count(b"\n") if self.path.exists() else 0
                if lines <= len(there) > 0:
                    write_whole(self.path, write_csv(there).encode(), sync=True)
        except OSError as error:
            raise UserError(f"--output={self.path} cannot be written: {error}") from error

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds results, and writes both files, each completely or not at all.

        Another command may add to the same files at the same time; none loses a row.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.path.parent):
            there = read_rows(self.json) if self.json.is_file() else []
            finite = ({**row, "metrics": finite_or_text(row["metrics"])} for row in rows)
            self.rows = [*there, *finite]
            text = json.dumps(self.rows, indent=1, ensure_ascii=False)
            write_whole(self.json, f"{text}\n".encode(), sync=True)
            write_whole(self.path, write_csv(self.rows).encode(), sync=True)


class WorkdirLog:
    """Appends results to `WORKDIR/evaluations.jsonl` if the path of the model is a workdir."""

    def __init__(self, path: str):
        self._found = None
        if workdir.recognize_workdir(pathlib.Path(path)):
            run = workdir.TrainedRun(pathlib.Path(path))
            self._found = run.folder, *run.find_checkpoint()

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends a line with the results of a data set."""
        if self._found is None or not rows:
            return
        folder, step, checkpoint = self._found
        numbers = {
            f"{row['dataset']}_{row['settings']['task']}/{name}": value
            for row in rows
            for name, value in row["metrics"].items()
        }
        about = {"evaluators": {rows[0]["dataset"]: {"name": "benchmark"}}}
        spent = rows[0]["seconds"]["embedding"] + sum(row["seconds"]["measuring"] for row in rows)
        EvaluationLog(str(folder), EVALUATION, about).write(step, numbers, spent, checkpoint)


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads a JSON file of results; an error says that it is not as it was written."""
    try:
        rows = read_json(str(path))
    except UserError as error:
        raise UserError(f"{error}: mend it or move it away") from error
    if not isinstance(rows, list):
        raise UserError(f"{path} holds no list of results: move it away")
    for number, row in enumerate(rows):
        if fault := _find_fault(row):
            raise UserError(f"{path}: row {number} has no {fault}: mend it or move the file away")
    return [_make_real(row) for row in rows]


def _make_real(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with numbers as they were written: other programs make 1 of 1.0."""
    metrics = {k: float(v) if type(v) is int else v for k, v in row["metrics"].items()}
    score = row["score"]
    return row | {"score": float(score) if type(score) is int else score, "metrics": metrics}


def _find_fault(row: Any) -> str:
    """Returns what a row lacks, or has as something else; "" if it has all."""
    if not isinstance(row, dict):
        return "fields"
    for field, (kind, name) in NEEDS.items():
        if field not in row:
            return field
        if not isinstance(row[field], kind) or isinstance(row[field], bool):
            return f"{name} as {field}, but {put_in_a_line(repr(row[field]))[:40]}"
    task = row["settings"].get("task")
    return "" if isinstance(task, str) and task in TASK_NAMES else "settings.task"


def write_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes a table with one line per result; a number that a result lacks is empty."""
    there = dict.fromkeys(name for row in rows for name in row["metrics"])
    columns = [*FIRST, *KNOWN, *(name for name in there if name not in KNOWN), *LAST]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, **row["metrics"]} for row in rows)
    return file.getvalue()


def write_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats results for a terminal: the score in percent, and the other numbers."""
    cells = [("data set", "task", "images", "score", "", "")]
    for row in add_means(rows):
        shown = {k: v for k, v in row["metrics"].items() if k in SHOWN and isinstance(v, float)}
        beside = "  ".join(f"{SHOWN[name]} {100 * value:.1f}" for name, value in shown.items())
        score = f"{100 * row['score']:.2f}" if isinstance(row["score"], float) else row["score"]
        cells.append((row["dataset"], row["task"], count_images(row), score, row["metric"], beside))
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    return "\n".join(
        f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  "
        f"{e:<{widths[4]}}  {f}".rstrip()
        for a, b, c, d, e, f in cells
    )


def count_images(row: Mapping[str, Any]) -> str:
    """Returns how many images were measured, and of how many, if the data set has others."""
    images, whole = row.get("images", 0), row.get("images_in_all")
    return f"{images:,}" if whole in (None, images) else f"{images:,} of {whole:,}"


SHOWN = {
    "acc1": "acc1", "acc5": "acc5", "mean_per_class_recall": "mean per class", "ece": "ECE",
    "lp_acc1": "acc1", "lp_mean_per_class_recall": "mean per class",
    "image_retrieval_recall@5": "image R@5", "text_retrieval_recall@5": "text R@5",
    **{f"{kind}_{k}shot": f"{k} shot{'s' * (k > 1)}"
       for kind in ("linear", "text_encoder") for k in (1, 4, 16)},
    "knn_r5": "R@5", "text_acc": "text", "image_acc": "image", "acc": "accuracy",
    "acc_replace": "replace", "acc_swap": "swap", "acc_add": "add",
    "sts": "STS", "sis": "SIS", "sits": "SITS", "spearman_hard": "hard",
}  # fmt: skip
"""Numbers that fit on a terminal, and their names there."""
