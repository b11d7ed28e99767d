"""The page that compares several runs."""

import html
import os
import statistics
from collections.abc import Iterator, Sequence

from big_align.pages.html_page import write_frame
from big_align.pages.run_report import sections
from big_align.pages.run_report.charts import draw_chart, format_number
from big_align.pages.run_report.run_record import RunRecord
from big_align.pages.run_report.scores import find_best
from big_align.pages.run_report.starts import compare_configs


def compare_runs(records: Sequence[RunRecord]) -> str:
    """Returns the page about several runs.

    Args:
      records: records of two or more runs.
    """
    names = name_runs(records)
    title = f"{len(records)} runs"
    body = [f"<h1>{title}</h1><p class=soft>{html.escape(', '.join(names))}</p>"]
    body += _write_runs(names, records)
    body += _write_evaluations(names, records)
    body += _write_curves(names, records)
    body += _write_configs(names, records)
    return write_frame(title, sections.STYLE, "".join(body))


def name_runs(records: Sequence[RunRecord]) -> list[str]:
    """Returns distinct names: of the folders, with as much of their paths as necessary."""
    paths = [os.path.abspath(record.workdir).split(os.sep) for record in records]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]  # one workdir twice


def _write_runs(names: Sequence[str], records: Sequence[RunRecord]) -> Iterator[str]:
    rows = []
    for name, record in zip(names, records, strict=True):
        known = {what: number for number, what in sections.summarize(record)}
        config, _ = record.find_changes()
        columns = "steps are done", "images per second", "since the run began", "parameters"
        rows.append([name, config, *(known.get(what, "") for what in columns)])
    head = ["run", " config", "steps", "images/s", "time", "parameters"]
    yield "<h2>Runs</h2>" + sections.write_table(head, rows)


def _write_evaluations(names: Sequence[str], records: Sequence[RunRecord]) -> Iterator[str]:
    """Writes the last numbers of every run side by side, with the best marked.

    Runs whose configs differ in nothing but seeds have their mean beside them.
    """
    known = list(dict.fromkeys(key for record in records for key in record.evaluations))
    if not known:
        return
    said = {name: low for record in records for name, low in record.said.items()}
    repeated = {field.split(".")[-1] for field in _list_changes(records)} == {"seed"}
    rows, marked = [], set()
    for key in known:
        series = [record.evaluations.get(key) for record in records]
        last = [values[-1][1] if values else None for values in series]
        best = find_best(key, last, said)
        if best is not None:
            marked |= {(len(rows), 1 + place) for place, x in enumerate(last) if x == last[best]}
        if repeated:
            last.append(None if None in last else statistics.fmean(last))
        rows.append([key, *("" if x is None else format_number(x) for x in last)])
    head = ["", *names, *(["mean"] if repeated else [])]
    yield "<h2>Last evaluations</h2>" + sections.write_table(head, rows, marked)


def _write_curves(names: Sequence[str], records: Sequence[RunRecord]) -> Iterator[str]:
    """Draws every number of all runs in one chart, with the same color for a run throughout."""
    training = [sections.training_curves(record) for record in records]
    curves = [
        {"loss": own.pop("loss"), **record.evaluations, **own}
        for own, record in zip(training, records, strict=True)
    ]
    charts = [
        draw_chart(key, {name: x.get(key, []) for name, x in zip(names, curves, strict=True)})
        for key in dict.fromkeys(key for x in curves for key in x)
    ]
    yield f"<h2>Curves</h2><div class=charts>{''.join(charts)}</div>"


def _write_configs(names: Sequence[str], records: Sequence[RunRecord]) -> Iterator[str]:
    """Writes the fields that differ between configs."""
    fields = _list_changes(records)
    yield "<h2>Differences of the configs</h2>"
    if not fields:
        yield "<p class=soft>None.</p>"
        return
    rows = [
        [field, *(sections.format_value(_find(record.config, field)) for record in records)]
        for field in sorted(fields)
    ]
    yield sections.write_table(["field", *(f" {name}" for name in names)], rows)


def _list_changes(records: Sequence[RunRecord]) -> set[str]:
    """Returns the fields in which configs differ."""
    first = records[0].config
    return {field for record in records[1:] for field in compare_configs(first, record.config)}


def _find(config: dict, field: str) -> object:
    node: object = config
    for name in field.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    return node
