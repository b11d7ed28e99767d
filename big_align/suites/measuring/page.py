"""Results as a page in a single file: bars with published numbers, and confused classes."""

import html
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from big_align.core.whole_files import write_whole
from big_align.plots.html_page import write_frame
from big_align.reports.sections import STYLE as TABLES
from big_align.reports.sections import write_table, write_tiles
from big_align.suites.measuring.means import add_means, average_suites
from big_align.suites.measuring.published import PublishedNumber, find_published, read_papers
from big_align.suites.measuring.results import count_images

STYLE = """
.bars { display: grid; grid-template-columns: minmax(8rem, max-content) minmax(6rem, 1fr);
  gap: .3rem .8rem; align-items: center; margin: .5rem 0 1.1rem; font-size: .88rem; }
.bars .name { min-width: 0; overflow-wrap: anywhere; } .bars .name small { color: var(--soft);
  display: block; } .bars .own { font-weight: 650; }
.track { display: flex; align-items: center; gap: .5rem; font-variant-numeric: tabular-nums; }
.track i { display: block; height: 1rem; min-width: 2px; border-radius: .2rem;
  background: var(--mark); flex: 0 1 auto; } .track.own i { background: var(--bar); }
.track span { white-space: nowrap; } .track.own span { font-weight: 650; }
.overview td:nth-child(2) { white-space: nowrap; }
section { margin-bottom: 2.4rem; } section > h3 { margin-bottom: .2rem; }
"""
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
    """Writes the page of results.

    Args:
      rows: rows of a `ResultFiles`, for one or more models; of several for a data set, a task and a
        model, as of a run that has gone on, the last counts.
      path: path of the page.
    """
    kept = {(row["dataset"], row["settings"]["task"], row["model_fullname"]): row for row in rows}
    rows = list(kept.values())
    models = list(dict.fromkeys(row["model_fullname"] for row in rows))
    title = models[0] if len(models) == 1 else f"{len(models)} models"
    sections, seen = [], {}
    for row in [*average_suites(rows), *rows]:
        name = row.get("suite", row["dataset"])
        seen.setdefault((name, row["settings"]["task"]), []).append(row)
    for (dataset, task), same in seen.items():
        sections.append(_write_section(dataset, task, same, len(models) > 1))
    body = (
        f"<h1>{html.escape(title)}</h1><p class=soft>What was measured, in hundredths; gray bars "
        "are what papers have published, each with its table. Other models saw other data, at "
        f"other sizes.</p>{write_tiles(_summarize(rows))}{_write_overview(rows)}"
        f"{''.join(sections)}{_write_papers()}"
    )
    page = write_frame(f"Benchmarks of {title}", TABLES + STYLE, body)
    write_whole(path, page.encode())


def _summarize(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    datasets = {row["dataset"] for row in rows}
    counts = {"data set": len(datasets), "result": len(rows)}
    tiles = [(f"{count}", f"{what}{'s' * (count > 1)}") for what, count in counts.items()]
    if len({row["model_fullname"] for row in rows}) > 1:
        return tiles
    for task, name in TASK_TITLES.items():
        scores = [row["score"] for row in rows if row["settings"]["task"] == task]
        if len(scores) > 1 and all(isinstance(score, float) for score in scores):
            tiles.append((f"{100 * sum(scores) / len(scores):.1f}", f"mean score, {name}"))
    return tiles


def _write_overview(rows: Sequence[Mapping[str, Any]]) -> str:
    head = [" data set", " task", "images", " metric", "score", "ECE"]
    cells = [
        [
            row["title"], TASK_TITLES[row["settings"]["task"]], count_images(row),
            name_number(row["metric"]), _format(row["score"]),
            _format(row["metrics"].get("ece", row["metrics"].get("lp_ece", ""))),
        ]
        for row in add_means(rows)
    ]  # fmt: skip
    table = f"<div class=overview>{write_table(head, cells)}</div>"
    return f"<h2>All results</h2>{table}<h2>Data sets</h2>"


def _write_section(
    dataset: str, task: str, rows: Sequence[Mapping[str, Any]], several: bool
) -> str:
    """Writes the bars of a data set and a task, and what a single model confuses."""
    published = find_published(dataset, task)
    metric = name_number(rows[0]["metric"])
    pieces = [f"<h3>{html.escape(rows[0]['title'])}, {TASK_TITLES[task]}</h3>"]
    count = f"{count_images(rows[0])} images, " if rows[0]["images"] else ""
    told = f"{count}{metric}"
    if rows[0].get("equal_classes"):
        told += f"; {EQUAL[rows[0]['settings']['equal_classes']].format(rows[0]['equal_classes'])}"
    pieces.append(f"<p class=soft>{html.escape(told)}</p>")
    own = [(_name_row(row, several), row["score"]) for row in rows]
    if rows[0]["metric"] == "accuracy":  # then it is the top-1 accuracy
        same = [published.pop(column, []) for column in ("score", "acc1", "lp_acc1")]
        published["score"] = [number for numbers in same for number in numbers]
    pieces.append(_write_bars(own, published.pop("score", [])))
    for column, numbers in published.items():
        values = [(_name_row(row, several), row["metrics"].get(column)) for row in rows]
        if not any(isinstance(value, float) for _, value in values):
            continue
        name = name_number(column)
        pieces.append(f"<p class=soft>{html.escape(name)}</p>{_write_bars(values, numbers)}")
    for row in rows if len(rows) == 1 else ():
        pieces += [_write_confusion(shown) for shown in row.get("confusions", [])]
        pieces.append(_write_classes(row.get("per_class", [])))
    return f"<section>{''.join(pieces)}</section>"


def name_number(column: str) -> str:
    """Returns the page's name for a number."""
    return SCORE_NAMES.get(column, column.replace("_", " "))


def _name_row(row: Mapping[str, Any], several: bool) -> str:
    return row["model_fullname"] if several else "this model"


def _write_bars(own: Sequence[tuple[str, Any]], published: Sequence[PublishedNumber]) -> str:
    """Writes bars from 0 to 100, the longest first."""
    bars = [(100 * x, name, "", True) for name, x in own if isinstance(x, float)]
    for number in published:
        where = ", ".join(filter(None, (number.data, f"{number.paper}, {number.table}")))
        bars.append((number.value, number.model, where, False))
    cells = []
    for value, name, where, mine in sorted(bars, key=lambda bar: -bar[0]):
        mark = " own" if mine else ""
        small = f"<small>{html.escape(where)}</small>" if where else ""
        width = max(0.0, min(100.0, value)) * 0.86  # leaves room for the number
        cells.append(
            f"<div class='name{mark}'>{html.escape(name)}{small}</div><div class='track{mark}'>"
            f"<i style='width: {width:.2f}%'></i><span>{value:.1f}</span></div>"
        )
    return f"<div class=bars>{''.join(cells)}</div>"


def _write_confusion(shown: Mapping[str, Any]) -> str:
    """Writes the counts of classes as a colored table."""
    names = [html.escape(name) for name in shown["names"]]
    others = any(row[-1] for row in shown["counts"])
    columns = [*names, *(["others"] if others else [])]
    top = "".join(f"<th class=upright>{name}" for name in columns)
    lines = []
    for name, counts in zip(names, shown["counts"], strict=True):
        total = max(1, sum(counts))
        cells = "".join(
            f"<td style='--share: {count / total:.3f}'>{count or ''}"
            for count in counts[: len(columns)]
        )
        lines.append(f"<tr><th>{name}{cells}")
    note = html.escape(f"{shown['title']}. {shown['note']}")
    return (
        f"<p class=soft>{note}</p><div class=scroll><table class=confusion><tr><th>{top}"
        f"{''.join(lines)}</table></div>"
    )


def _write_classes(per_class: Sequence[Mapping[str, Any]]) -> str:
    """Writes the table of classes, worst results first."""
    if not per_class:
        return ""
    number = next(n for n in ("recall", "accuracy", "map_11_point") if n in per_class[0])
    worst = sorted(per_class, key=lambda row: row[number])
    shown = worst[:LEAST_PER_CLASS]
    cells = [[row["class"], f"{row['images']:,}", _format(row[number])] for row in shown]
    which = "Classes" if len(worst) == len(shown) else f"{len(shown)} of {len(worst)} classes"
    table = write_table(["class", "images", number.replace("_", " ")], cells)
    return f"<details><summary>{which}, the worst first</summary>{table}</details>"


def _write_papers() -> str:
    items = (
        f"<li>{html.escape(name)}: {html.escape(text)}" for name, text in read_papers().items()
    )
    return f"<h2>Papers</h2><ul class=soft>{''.join(items)}</ul>"


def _format(value: Any) -> str:
    return f"{100 * value:.2f}" if isinstance(value, float) else str(value)
