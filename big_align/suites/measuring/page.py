"""Results as a page in a single file: bars with published numbers, and confused classes."""

import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from big_align.core.whole_files import write_whole
from big_align.pages.rendering import Tile, render
from big_align.suites.measuring.means import add_means, average_suites
from big_align.suites.measuring.published import PublishedNumber, find_published, read_papers
from big_align.suites.measuring.results import count_images

SCORE_NAMES = {
    "score": "mean over data sets, each by its metric",
    "accuracy": "accuracy", "mean_per_class": "mean accuracy per class",
    "map_11_point": "11-point mAP", "roc_auc": "area under the ROC curve",
    "mean_top1_top5": "mean of top-1 and top-5", "mean_recall": "mean recall",
    "knn_r1": "accuracy of the nearest neighbor", "mean_of_categories": "mean over categories",
    "group_accuracy": "group score", "text_acc": "text score", "image_acc": "image score",
    "spearman": "Spearman's correlation", "mean_correlation": "mean of STS, SIS and SITS",
    "sts": "STS, Spearman's correlation", "sis": "SIS, Spearman's correlation",
    "sits": "SITS, Spearman's correlation",
    "acc1": "top-1 accuracy", "acc5": "top-5 accuracy",
    "lp_acc1": "top-1 accuracy", "lp_acc5": "top-5 accuracy",
}  # fmt: skip
TASK_TITLES = {
    "zero_shot": "zero-shot", "linear_probe": "linear probe", "few_shot": "few shots",
    "few_shot_text": "few shots by the text encoder", "knn": "nearest neighbors",
    "retrieval": "retrieval", "composition": "composition", "similarity": "similarity",
}  # fmt: skip
EQUAL = {
    "wrong": "{} classes have the text of another one, and the images of both count as wrong; the "
    "published numbers take the first of them (--equal_classes=first)",
    "first": "{} classes have the text of another one, and the first of them is taken",
}
"""What is said of classes with equal texts."""
LEAST_PER_CLASS = 10
"""If there are more classes, the page shows those with the worst results."""


def write_page(rows: Sequence[Mapping[str, Any]], path: str | pathlib.Path) -> None:
    """Writes the page of results of one or more models.

    Of several for a data set, a task and a model, as of a run that has gone on, the last counts.
    """
    kept = {(row["dataset"], row["settings"]["task"], row["model_fullname"]): row for row in rows}
    rows = list(kept.values())
    models = list(dict.fromkeys(row["model_fullname"] for row in rows))
    title = models[0] if len(models) == 1 else f"{len(models)} models"
    seen: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in [*average_suites(rows), *rows]:
        name = row.get("suite", row["dataset"])
        seen.setdefault((name, row["settings"]["task"]), []).append(row)
    page = render(
        "benchmarks.html",
        title=f"Benchmarks of {title}",
        models=title,
        tiles=_summarize(rows),
        overview=_list_results(rows),
        sections=[
            {
                "title": f"{same[0]['title']}, {TASK_TITLES[task]}",
                "note": _describe(same[0]),
                "groups": list(_list_groups(dataset, task, same, len(models) > 1)),
                "confusions": same[0].get("confusions", []) if len(same) == 1 else [],
                "classes": _list_classes(same[0].get("per_class", []) if len(same) == 1 else []),
            }
            for (dataset, task), same in seen.items()
        ],
        papers=read_papers(),
    )
    write_whole(path, page.encode())


def _summarize(rows: Sequence[Mapping[str, Any]]) -> list[Tile]:
    datasets = {row["dataset"] for row in rows}
    counts = {"data set": len(datasets), "result": len(rows)}
    tiles = [Tile(f"{count}", f"{what}{'s' * (count > 1)}") for what, count in counts.items()]
    if len({row["model_fullname"] for row in rows}) > 1:
        return tiles
    for task, name in TASK_TITLES.items():
        scores = [row["score"] for row in rows if row["settings"]["task"] == task]
        if len(scores) > 1 and all(isinstance(score, float) for score in scores):
            tiles.append(Tile(f"{100 * sum(scores) / len(scores):.1f}", f"mean score, {name}"))
    return tiles


def _list_results(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            row["title"], TASK_TITLES[row["settings"]["task"]], count_images(row),
            name_number(row["metric"]), _format(row["score"]),
            _format(row["metrics"].get("ece", row["metrics"].get("lp_ece", ""))),
        ]
        for row in add_means(rows)
    ]  # fmt: skip


def _describe(row: Mapping[str, Any]) -> str:
    """Says what the score of a data set and a task is of."""
    told = f"{count_images(row)} images, " if row["images"] else ""
    told += name_number(row["metric"])
    if row.get("equal_classes"):
        told += f"; {EQUAL[row['settings']['equal_classes']].format(row['equal_classes'])}"
    return told


def _list_groups(
    dataset: str, task: str, rows: Sequence[Mapping[str, Any]], several: bool
) -> Iterator[tuple[str, list[tuple]]]:
    """Yields the bars of a data set and a task: of the score, and of other published numbers."""
    published = find_published(dataset, task)
    if rows[0]["metric"] == "accuracy":  # then it is the top-1 accuracy
        same = [published.pop(column, []) for column in ("score", "acc1", "lp_acc1")]
        published["score"] = [number for numbers in same for number in numbers]
    names = [row["model_fullname"] if several else "this model" for row in rows]
    own = zip(names, (row["score"] for row in rows), strict=True)
    yield "", _list_bars(own, published.pop("score", []))
    for column, numbers in published.items():
        values = [row["metrics"].get(column) for row in rows]
        if any(isinstance(value, float) for value in values):
            yield name_number(column), _list_bars(zip(names, values, strict=True), numbers)


def name_number(column: str) -> str:
    """Returns the page's name for a number."""
    return SCORE_NAMES.get(column, column.replace("_", " "))


def _list_bars(
    own: Iterable[tuple[str, Any]], published: Sequence[PublishedNumber]
) -> list[tuple[float, str, str, bool]]:
    """Returns bars from 0 to 100, the longest first: value, name, source, and whether it is own."""
    bars = [(100 * x, name, "", True) for name, x in own if isinstance(x, float)]
    for number in published:
        where = ", ".join(filter(None, (number.data, f"{number.paper}, {number.table}")))
        bars.append((number.value, number.model, where, False))
    return sorted(bars, key=lambda bar: -bar[0])


def _list_classes(per_class: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the table of classes, worst results first."""
    if not per_class:
        return {}
    number = next(n for n in ("recall", "accuracy", "map_11_point") if n in per_class[0])
    worst = sorted(per_class, key=lambda row: row[number])
    shown = worst[:LEAST_PER_CLASS]
    rows = [[row["class"], f"{row['images']:,}", _format(row[number])] for row in shown]
    which = "Classes" if len(worst) == len(shown) else f"{len(shown)} of {len(worst)} classes"
    return {"which": which, "head": ["class", "images", number.replace("_", " ")], "rows": rows}


def _format(value: Any) -> str:
    return f"{100 * value:.2f}" if isinstance(value, float) else str(value)
