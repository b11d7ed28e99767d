"""The page that compares several runs."""

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from big_align.pages.charts import Drawing, draw_chart
from big_align.pages.rendering import format_number, render
from big_align.pages.run_report.run_record import RunRecord
from big_align.pages.run_report.sections import (
    drawn_evaluations,
    find_best,
    format_value,
    summarize,
    training_curves,
)
from big_align.pages.run_report.stages import join_stages
from big_align.pages.run_report.starts import compare_configs, find_field


def compare_runs(records: Sequence[RunRecord]) -> str:
    """Returns the page about several runs."""
    names, joined = name_runs(records), [join_stages(record)[0] for record in records]
    return render(
        "comparison.html",
        title=f"{len(records)} runs",
        names=names,
        runs=list(_list_runs(names, joined)),
        evaluations=_list_evaluations(names, records),
        charts=_draw_curves(names, joined),
        changes=[
            [field, *(format_value(find_field(record.config, field)) for record in records)]
            for field in sorted(_list_changes(records))
        ],
    )


def name_runs(records: Sequence[RunRecord]) -> list[str]:
    """Returns distinct names: of the folders, with as much of their paths as necessary."""
    paths = [os.path.abspath(record.workdir).split(os.sep) for record in records]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]  # one workdir twice


def _list_runs(names: Sequence[str], records: Sequence[RunRecord]) -> Iterator[list[str]]:
    for name, record in zip(names, records, strict=True):
        known = {tile.what: tile.number for tile in summarize(record)}
        config, _ = record.find_changes()
        columns = "steps are done", "images per second", "since the run began", "parameters"
        yield [name, config, *(known.get(what, "") for what in columns)]


def _list_evaluations(names: Sequence[str], records: Sequence[RunRecord]) -> dict[str, Any]:
    """Returns the last numbers of every run side by side, with the best marked.

    Runs whose configs differ in nothing but seeds have their mean beside them.
    """
    said = {name: low for record in records for name, low in record.said.items()}
    repeated = {field.split(".")[-1] for field in _list_changes(records)} == {"seed"}
    rows, marked = [], set()
    for key in dict.fromkeys(key for record in records for key in record.evaluations):
        series = [record.evaluations.get(key) for record in records]
        last = [values[-1][1] if values else None for values in series]
        best = find_best(key, last, said)
        if best is not None:
            marked |= {(len(rows), 1 + place) for place, x in enumerate(last) if x == last[best]}
        if repeated:
            last.append(None if None in last else statistics.fmean(last))
        rows.append([key, *("" if x is None else format_number(x) for x in last)])
    head = ["", *names, *(["mean"] if repeated else [])]
    return {"head": head, "rows": rows, "best": marked}


def _draw_curves(names: Sequence[str], records: Sequence[RunRecord]) -> list[Drawing]:
    """Draws every number of all runs in one chart, with the same color for a run throughout."""
    training = [training_curves(record) for record in records]
    curves = [
        {"loss": own.pop("loss"), **drawn_evaluations(record), **own}
        for own, record in zip(training, records, strict=True)
    ]
    charts = (
        draw_chart(key, {name: x.get(key, []) for name, x in zip(names, curves, strict=True)})
        for key in dict.fromkeys(key for x in curves for key in x)
    )
    return list(filter(None, charts))


def _list_changes(records: Sequence[RunRecord]) -> set[str]:
    """Returns the fields in which configs differ."""
    first = records[0].config
    return {field for record in records[1:] for field in compare_configs(first, record.config)}
