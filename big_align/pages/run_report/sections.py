"""The sections of the page about one run, as HTML."""

import html
import json
import shlex
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from big_align.pages.run_report import starts
from big_align.pages.run_report.charts import COLORS, draw_chart, format_number
from big_align.pages.run_report.run_record import RunRecord, Series
from big_align.pages.run_report.scores import find_best
from big_align.training.logs.directions import NEITHER, find_direction
from big_align.training.logs.phases import PHASES

STYLE = """
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .8rem; color: var(--soft); }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: .2rem;
  margin-right: .3rem; } .scroll { overflow-x: auto; }
.scroll table { width: auto; min-width: min(22rem, 100%); } td.n, th.n { text-align: right;
  padding-left: 1.2rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.best { color: var(--right); font-weight: 650; } td:first-child { width: auto; }
td.value { overflow-wrap: anywhere; min-width: 6rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; margin: .3rem 0
  .9rem; padding: .7rem .9rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.time { display: flex; height: 1.3rem; border-radius: .4rem; overflow: hidden; margin: 1rem 0; }
.time i { display: block; min-width: 1px; }
details summary { cursor: pointer; color: var(--soft); margin: .8rem 0; }
"""
UNDRAWN = {"step_seconds", "data_wait_seconds", "device_flops_per_second", "goodput", "epoch"}
"""Numbers of training for which no curve is drawn."""


def write_tiles(tiles: Sequence[tuple[str, str]]) -> str:
    """Writes numbers, each with its description."""
    cells = (
        f"<div class=tile><b>{html.escape(number)}</b><span>{html.escape(what)}</span></div>"
        for number, what in tiles
    )
    return f"<div class=tiles>{''.join(cells)}</div>"


def write_table(head: Sequence[str], rows: Sequence[Sequence[str]], best: Any = ()) -> str:
    """Writes a table whose first column contains names.

    Args:
      head: titles of the columns; if one starts with a space, the column has text, otherwise
        numbers.
      rows: cells, as text.
      best: positions of cells to mark, as (row, column).
    """
    kinds = ["", *("value" if name.startswith(" ") else "n" for name in head[1:])]
    top = "".join(
        f"<th class='{kind}'>{html.escape(name.strip())}"
        for kind, name in zip(kinds, head, strict=True)
    )
    lines = []
    for number, row in enumerate(rows):
        cells = (
            f"<td class='{kind}{' best' * ((number, place) in best)}'>{html.escape(cell)}"
            for place, (kind, cell) in enumerate(zip(kinds, row, strict=True))
        )
        lines.append(f"<tr>{''.join(cells)}")
    return f"<div class=scroll><table><tr>{top}{''.join(lines)}</table></div>"


def summarize(record: RunRecord) -> list[tuple[str, str]]:
    """Returns the most important numbers, each with its description."""
    total = f" of {record.total_steps:,}" if record.total_steps else ""
    tiles = [(f"{record.step:,}{total}", "steps are done")]
    for name, what in (("loss", "loss"), ("images_per_second", "images per second")):
        if values := record.series.get(name):
            tiles.append((format_number(values[-1][1]), what))
    firsts: dict[str, str] = {}  # the first number of each evaluator
    for name in record.evaluations:
        firsts.setdefault(name.partition("/")[0], name)
    for name in list(firsts.values())[:3]:
        tiles.append((format_number(record.evaluations[name][-1][1]), name))
    spent = sum(record.seconds.values())
    if spent:
        tiles.append((format_time(spent), "since the run began"))
        tiles.append((f"{record.seconds.get('steps', 0) / spent:.0%}", "of it trained (goodput)"))
    if counts := record.last_start.get("parameters"):
        tiles.append((f"{sum(counts.values()):,}", "parameters"))
    if count := (record.last_start.get("examples") or {}).get("training"):
        tiles.append((f"{count:,}", "training examples"))
    return tiles


def format_time(seconds: float) -> str:
    """Formats a duration."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def write_evaluations(record: RunRecord) -> Iterator[str]:
    """Writes the table of all numbers of the evaluators: last, best and first."""
    if not record.evaluations:
        return
    yield "<h2>Evaluations</h2>"
    rows, marked = [], set()
    for name, values in record.evaluations.items():
        best = find_best(name, [value for _, value in values], record.said)
        shown = ["", ""]
        if best is not None:
            shown = [format_number(values[best][1]), f"{values[best][0]:,}"]
        if best == len(values) - 1:
            marked.add((len(rows), 1))
        rows.append([name, format_number(values[-1][1]), *shown, format_number(values[0][1])])
    first, last = (
        {f"step {values[place][0]:,}" for values in record.evaluations.values()}
        for place in (0, -1)
    )
    ends = [", ".join(steps) if len(steps) == 1 else "" for steps in (last, first)]
    head = ["", f"last {ends[0]}", "best", "at step", f"first {ends[1]}"]
    yield write_table(head, rows, marked)


def training_curves(record: RunRecord) -> dict[str, Series]:
    """Returns the curves of training: the loss, rates, and metrics of the objective."""
    first = "loss", "learning_rate", "images_per_second"
    others = (name for name in record.series if "/" not in name and name not in UNDRAWN)
    return {name: record.series.get(name, []) for name in dict.fromkeys([*first, *others])}


def evaluation_curves(record: RunRecord) -> dict[str, dict[str, Series]]:
    """Returns the numbers of each evaluator; non-scores, such as tags per image, separately.

    If there are more numbers than colors, they are split over several charts.
    """
    groups: dict[str, dict[str, Series]] = {}
    for name, values in record.evaluations.items():
        evaluator, _, key = name.partition("/")
        is_fact = find_direction(name, record.said) == NEITHER
        title = f"{evaluator}, for comparison" if is_fact else evaluator
        groups.setdefault(title, {})[key] = values
    parted: dict[str, dict[str, Series]] = {}
    for title, curves in groups.items():
        names = list(curves)
        parts = [names[first : first + COLORS] for first in range(0, len(names), COLORS)]
        for number, part in enumerate(parts, start=1):
            place = f", {number} of {len(parts)}" if len(parts) > 1 else ""
            parted[f"{title}{place}"] = {name: curves[name] for name in part}
    return parted


def write_curves(record: RunRecord) -> Iterator[str]:
    """Draws the curves of training and of evaluations."""
    training = {name.replace("_", " "): {name: x} for name, x in training_curves(record).items()}
    groups = {"loss": training.pop("loss"), **evaluation_curves(record), **training}
    charts = [draw_chart(title, curves) for title, curves in groups.items()]
    if any(charts):
        yield f"<h2>Curves</h2><div class=charts>{''.join(charts)}</div>"


def write_training(record: RunRecord) -> Iterator[str]:
    """Writes what was trained: config changes, data, parameters, versions and devices."""
    start = record.last_start
    yield "<h2>What was trained</h2>"
    config, changes = record.find_changes()
    if config:
        yield f"<p><code>{html.escape(config)}</code>"
        yield " with these changes:</p>" if changes else ", as it is.</p>"
    if changes:
        rows = [[name, *map(format_value, values)] for name, values in changes.items()]
        yield write_table(["field", " in the file", " in this run"], rows)
    if data := list(_list_data(record)):
        yield "<h3>Data</h3>" + write_table(["", "examples", " source"], data)
    if counts := start.get("parameters"):
        rows = [[name, f"{count:,}"] for name, count in counts.items()]
        yield "<h3>Parameters</h3>" + write_table(["part", "parameters"], rows)
    if start.get("versions"):
        yield "<h3>Versions and devices</h3>" + write_table(["", " "], list(_list_machine(start)))
    if len(record.starts) > 1:
        rows = [
            [f"{each.get('step', 0):,}", _format_date(each), str(each.get("command", ""))]
            for each in record.starts
        ]
        yield "<h3>Processes</h3>" + write_table(["from step", " began", " command"], rows)
    if record.config:
        text = html.escape(json.dumps(record.config, indent=2))
        yield f"<details><summary>Every field of the config</summary><pre>{text}</pre></details>"


def _list_data(record: RunRecord) -> Iterator[list[str]]:
    counts = record.last_start.get("examples") or {}
    data = record.config.get("data") or {}
    parts = data.get("mixture") or {"training": data}
    total = counts.get("training")
    for name, part in parts.items():
        where = "training" if name == "training" else f"training: {name}"
        count = "" if len(parts) > 1 or total is None else f"{total:,}"
        yield [where, count, _describe_source(part.get("source") or {})]
    if len(parts) > 1 and total is not None:
        yield ["training, all parts", f"{total:,}", ""]
    for name, node in (record.config.get("evaluators") or {}).items():
        count = counts.get(name)
        source = _describe_source((node or {}).get("source") or {})
        yield [f"{name} ({node.get('name')})", "" if count is None else f"{count:,}", source]


def _describe_source(node: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in node.items() if v not in (None, ""))


def _list_machine(start: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["devices", starts.format_devices(start.get("devices") or {})]
    yield ["machine", str(start.get("machine", ""))]
    yield from ([name, version] for name, version in start["versions"].items())


def _format_date(start: Mapping[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start.get("time") or 0))


def format_value(value: Any) -> str:
    """Formats the value of a field; only the beginning of a whole node."""
    if isinstance(value, str):
        return value
    return textwrap.shorten(json.dumps(value, default=str), 90, placeholder=" …")


def write_time(record: RunRecord) -> Iterator[str]:
    """Draws where the time of all processes went."""
    spent = {PHASES.get(name, name): x for name, x in record.seconds.items() if x > 0}
    total = sum(spent.values())
    if not total:
        return
    yield "<h2>Where the time went</h2><div class=time>"
    for number, seconds in enumerate(spent.values()):
        yield f"<i style='flex: {seconds / total:.4f}; background: var(--c{number % 8})'></i>"
    legend = (
        f"<span><i style='background: var(--c{number % 8})'></i>{html.escape(name)} "
        f"{format_time(seconds)} ({seconds / total:.1%})</span>"
        for number, (name, seconds) in enumerate(spent.items())
    )
    yield f"</div><div class=legend>{''.join(legend)}</div>"


def write_commands(record: RunRecord) -> Iterator[str]:
    """Writes the commands that continue, evaluate, export and compare the run."""
    folder = shlex.quote(record.workdir)
    commands = {}
    if command := record.last_start.get("command"):
        finished = record.total_steps and record.step >= record.total_steps
        more = "Train on, with more steps; a schedule that decays is stretched over all of them"
        commands[more if finished else "Continue"] = command
        words = [word for word in shlex.split(command) if not word.startswith("--profile")]
        place = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        commands["Evaluate"] = shlex.join([*words[:place], "--mode=eval", *words[place:]])
        if finished:
            commands[more] += f" --config.total_steps={2 * record.total_steps}"
    tool = "python -m big_align.tools"
    commands["Export"] = f"{tool}.convert --input={folder} --output=exported --format=big_align"
    commands["Write this page again"] = f"{tool}.report --workdir={folder}"
    other = f"{tool}.report --workdir={folder} --workdir=OTHER --output=compared.html"
    commands["Compare with another run"] = other
    yield "<h2>Commands</h2>"
    for what, command in commands.items():
        yield f"<p class=soft>{what}</p><pre>{html.escape(command)}</pre>"
