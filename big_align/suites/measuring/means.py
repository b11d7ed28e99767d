"""Means of results: over the languages of a data set, and over the data sets of a suite."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from big_align.suites import catalog
from big_align.suites.measuring.plans import TASKS_OF

TASKS = ("zero_shot", "linear_probe", "few_shot", "few_shot_text", "knn", "retrieval")
"""Tasks whose scores papers average over data sets."""


def add_means(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns results, followed by their means over languages and over suites."""
    return [*rows, *average_languages(rows), *average_suites(rows)]


def average_languages(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the mean score over languages for each multilingual data set and each model.

    If there are several results for a language, the last counts; `images` are those of the language
    that has the most.
    """
    groups: dict[tuple, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        language = row.get("language", "")
        dataset = row["dataset"].removesuffix(f"_{language}")
        if dataset != row["dataset"] and isinstance(row["score"], float):
            key = dataset, row["model_fullname"], row["task"], row["metric"]
            groups.setdefault(key, {})[language] = row
    averaged = []
    for (dataset, *_), languages in groups.items():
        same = list(languages.values())
        count, first = len(same), same[0]
        if count < 2:
            continue
        title = first["title"].removesuffix(f" ({first['language']})")
        averaged.append({
            **{k: first[k] for k in ("task", "model_fullname", "settings", "metric")},
            "dataset": f"{dataset}, mean of {count}",
            "title": f"{title}, mean of {count} languages",
            "languages": list(languages),
            "images": max(row.get("images", 0) for row in same),
            "score": sum(row["score"] for row in same) / count,
            "metrics": {},
        })  # fmt: skip
    return averaged


def average_suites(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the mean score of each suite that a model was measured on as a whole, for each task.

    It is the mean that papers report: of the number of each data set that the suite says, all with
    the same weight. Zero-shot results with other templates than the suite's are not of it. The
    whole are the data sets that the task fits: there are no few shots of images with several
    labels. If there are several results for a data set, the last counts.

    Rows are as those of `average_languages`, with `suite` in place of `languages`. `metrics` are
    the means of the numbers that all data sets have; `images` are those of all together.
    """
    groups: dict[tuple, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if isinstance(row["score"], float) and row["settings"]["task"] in TASKS:
            key = row["model_fullname"], row["settings"]["task"]
            groups.setdefault(key, {})[row["dataset"]] = row
    averaged = []
    for (_, task), measured in groups.items():
        for name, about in catalog.suites().items():
            suite = catalog.read_suite(name)
            fit = [x for x in suite.names if task in TASKS_OF[catalog.read_benchmark(x).task]]
            same = [measured[x] for x in fit if _is_of(suite, measured.get(x))]
            if len(fit) > 1 and len(same) == len(fit):
                averaged.append(_average(suite, same) | {"suite": name})
                part = "" if len(fit) == len(suite.names) else f" of {len(suite.names)}"
                averaged[-1]["title"] = f"{about}, mean" + (f" of {len(fit)}{part}" if part else "")
                averaged[-1]["dataset"] = f"{name}, mean of {len(fit)}{part}"
    return averaged


def _average(suite: catalog.Suite, same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the row of a suite says of its data sets."""
    return {
        **{k: same[0][k] for k in ("task", "model_fullname", "settings")},
        "images": sum(row.get("images", 0) for row in same),
        "images_in_all": sum(row.get("images_in_all") or row.get("images", 0) for row in same),
        **average_results(same, suite.measure),
    }


def _is_of(suite: catalog.Suite, row: Mapping[str, Any] | None) -> bool:
    """Returns whether there is a result, and its texts are those of the suite."""
    if row is None or not suite.templates or row["settings"]["task"] != "zero_shot":
        return row is not None
    return tuple(row["settings"].get("templates", ())) == suite.templates[row["dataset"]]


def average_results(same: Sequence[Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """Returns the mean over data sets of a suite: of `measure`, and of metrics that all have."""
    shared = [
        name
        for name in same[0]["metrics"]
        if all(isinstance(row["metrics"].get(name), float) for row in same)
    ]
    measured = [_choose_number(row, measure) for row in same]
    metrics = {metric for metric, _ in measured}
    return {
        "metric": metrics.pop() if len(metrics) == 1 else "score",
        "score": statistics.fmean(number for _, number in measured),
        "metrics": {
            name: statistics.fmean(row["metrics"][name] for row in same) for name in shared
        },
    }


def _choose_number(row: Mapping[str, Any], measure: str) -> tuple[str, float]:
    """Returns the name and the value of what a suite averages."""
    for name in ("acc1", "lp_acc1") if measure == "accuracy" else ():
        if name in row["metrics"]:
            return "accuracy", row["metrics"][name]
    return row["metric"], row["score"]
