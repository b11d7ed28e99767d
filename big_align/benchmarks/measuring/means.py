"""Means of results: over the languages of a data set, and over the data sets of a suite."""

from collections.abc import Mapping, Sequence
from typing import Any

from big_align.benchmarks import catalog
from big_align.benchmarks.measuring.plans import TASKS_OF

TASKS = ("zero_shot", "linear_probe", "few_shot", "few_shot_text", "knn", "retrieval")
"""Tasks whose scores papers average over data sets."""


def add_means(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns results, followed by their means over languages and over suites."""
    return [*rows, *average_languages(rows), *average_suites(rows)]


def average_languages(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the mean score over languages for each multilingual data set and each model.

    Args:
      rows: results; if there are several for a language, the last counts.

    Returns:
      Rows with `dataset`, `title`, `task`, `model_fullname`, `settings`, `metric`, `score`,
      `metrics` and `languages`; `images` are those of the language that has the most.
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

    It is the mean that papers report: each data set has its own metric, and all the same weight.
    The whole are the data sets that the task fits: there are no few shots of images with several
    labels.

    Args:
      rows: results; if there are several for a data set, the last counts.

    Returns:
      Rows as those of `average_languages`, with `suite` in place of `languages`. `metrics` are the
      means of the numbers that all data sets have; `images` are those of all together.
    """
    groups: dict[tuple, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if isinstance(row["score"], float) and row["settings"]["task"] in TASKS:
            key = row["model_fullname"], row["settings"]["task"]
            groups.setdefault(key, {})[row["dataset"]] = row
    averaged = []
    for (_, task), measured in groups.items():
        for suite, about in catalog.suites().items():
            names = catalog.expand([suite])
            fit = [n for n in names if task in TASKS_OF[catalog.read_benchmark(n).task]]
            if len(fit) > 1 and measured.keys() >= set(fit):
                same = [measured[name] for name in fit]
                whole = "" if fit == names else f" of {len(names)}"
                title = f"{about}, mean" + (f" of {len(fit)}{whole}" if whole else "")
                averaged.append(_average(same) | dict(suite=suite, title=title))
                averaged[-1]["dataset"] = f"{suite}, mean of {len(fit)}{whole}"
    return averaged


def _average(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the row of a suite says of its data sets."""
    first = same[0]
    shared = [
        name
        for name in first["metrics"]
        if all(isinstance(row["metrics"].get(name), float) for row in same)
    ]
    metrics = {row["metric"] for row in same}
    return {
        **{k: first[k] for k in ("task", "model_fullname", "settings")},
        "metric": first["metric"] if len(metrics) == 1 else "score",
        "images": sum(row.get("images", 0) for row in same),
        "images_in_all": sum(row.get("images_in_all") or row.get("images", 0) for row in same),
        "score": sum(row["score"] for row in same) / len(same),
        "metrics": {name: sum(row["metrics"][name] for row in same) / len(same) for name in shared},
    }
