"""What the page about one run says, as values: numbers, tables, curves and commands."""

import importlib.util
import json
import pathlib
import shlex
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from big_align.config.components.source_flags import write_source_flags
from big_align.config.components.tables import SOURCES
from big_align.config.kept_files import FOLDER
from big_align.core.errors import UserError
from big_align.core.nodes import find_node
from big_align.data.labels.classes import OWN_NAMES, read_classes
from big_align.pages.charts import COLORS, Drawing, Series, draw_chart
from big_align.pages.rendering import Tile, format_number, format_source, format_time
from big_align.pages.run_report import starts
from big_align.pages.run_report.run_record import RunRecord
from big_align.training.logs.directions import (
    CANDIDATES,
    CHANCE,
    LOWER,
    NEITHER,
    Said,
    find_direction,
)
from big_align.training.logs.phases import PHASES

TOOL = "python -m big_align.tools"
UNDRAWN = {"step_seconds", "data_wait_seconds", "device_flops_per_second", "goodput", "epoch"}
"""Numbers of training for which no curve is drawn."""
NAMED = 5  # classes at most in a command


def summarize(record: RunRecord) -> list[Tile]:
    """Returns the most important numbers."""
    total = f" of {record.total_steps:,}" if record.total_steps else ""
    tiles = [Tile(f"{record.step:,}{total}", "steps are done")]
    for name, what in (("loss", "loss"), ("images_per_second", "images per second")):
        if values := record.series.get(name):
            tiles.append(Tile(format_number(values[-1][1]), what))
    firsts: dict[str, str] = {}  # the first number of each evaluator
    for name in record.evaluations:
        firsts.setdefault(name.partition("/")[0], name)
    for name in list(firsts.values())[:3]:
        chance = record.evaluations.get(f"{name}{CHANCE}")
        told = f" (chance {format_number(chance[-1][1])})" if chance else ""
        tiles.append(Tile(format_number(record.evaluations[name][-1][1]), f"{name}{told}"))
    spent = sum(record.seconds.values())
    if spent:
        tiles.append(Tile(format_time(spent), "since the run began"))
        share = record.seconds.get("steps", 0) / spent
        tiles.append(Tile(f"{share:.0%}", "of it trained (goodput)"))
    if counts := record.last_start.get("parameters"):
        tiles.append(Tile(f"{sum(counts.values()):,}", "parameters"))
    if count := (record.last_start.get("examples") or {}).get("training"):
        tiles.append(Tile(f"{count:,}", "training examples"))
    return tiles


def find_best(name: str, values: Sequence[float | None], said: Said) -> int | None:
    """Returns the index of the first of the best values of `evaluator/number`, NaN being none.

    It is None if all are equal, or cannot be compared.
    """
    known = {k: value for k, value in enumerate(values) if value is not None and value == value}
    direction = find_direction(name, said)
    if direction == NEITHER or len(set(known.values())) < 2:
        return None
    choose = min if direction == LOWER else max
    return choose(known, key=known.__getitem__)


def list_evaluations(record: RunRecord) -> dict[str, Any]:
    """Returns the table of all numbers of the evaluators: last, best and first."""
    rows, marked = [], set()
    chances = {name for name in record.evaluations if name.endswith(CHANCE)}
    for name, values in record.evaluations.items():
        if name in chances:
            continue
        best = find_best(name, [value for _, value in values], record.said)
        shown = ["", ""]
        if best is not None:
            shown = [format_number(values[best][1]), f"{values[best][0]:,}"]
        if best == len(values) - 1:
            marked.add((len(rows), 1))
        row = [name, format_number(values[-1][1]), *shown, format_number(values[0][1])]
        if chances:
            chance = record.evaluations.get(f"{name}{CHANCE}")
            row.append("" if chance is None else format_number(chance[-1][1]))
        rows.append(row)
    first, last = (
        {f"step {values[place][0]:,}" for values in record.evaluations.values()}
        for place in (0, -1)
    )
    ends = [", ".join(steps) if len(steps) == 1 else "" for steps in (last, first)]
    head = ["", f"last {ends[0]}", "best", "at step", f"first {ends[1]}"]
    head += ["chance"] * bool(chances)
    return {"head": head, "rows": rows, "best": marked}


def training_curves(record: RunRecord) -> dict[str, Series]:
    """Returns the curves of training: the loss, rates, and metrics of the objective."""
    first = "loss", "learning_rate", "images_per_second"
    others = (name for name in record.series if "/" not in name and name not in UNDRAWN)
    return {name: record.series.get(name, []) for name in dict.fromkeys([*first, *others])}


def drawn_evaluations(record: RunRecord) -> dict[str, Series]:
    """Returns the numbers of evaluators that have a curve: not those that are always the same."""
    still = CHANCE, CANDIDATES
    return {name: x for name, x in record.evaluations.items() if not name.endswith(still)}


def evaluation_curves(record: RunRecord) -> dict[str, dict[str, Series]]:
    """Returns the numbers of each evaluator; non-scores, such as tags per image, separately.

    If there are more numbers than colors, they are split over several charts.
    """
    groups: dict[str, dict[str, Series]] = {}
    for name, values in drawn_evaluations(record).items():
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


def draw_curves(record: RunRecord, marks: Sequence[int] = ()) -> list[Drawing]:
    """Draws the curves of training and of evaluations; another stage begins after each mark."""
    training = {name.replace("_", " "): {name: x} for name, x in training_curves(record).items()}
    groups = {"loss": training.pop("loss"), **evaluation_curves(record), **training}
    charts = (draw_chart(title, curves, marks) for title, curves in groups.items())
    return list(filter(None, charts))


def list_data(record: RunRecord) -> Iterator[list[str]]:
    """Yields the parts of the training data and the data of evaluators: examples and source."""
    counts = record.last_start.get("examples") or {}
    data = record.config.get("data") or {}
    parts = data.get("mixture") or {"training": data}
    total = counts.get("training")
    for name, part in parts.items():
        where = "training" if name == "training" else f"training: {name}"
        count = "" if len(parts) > 1 or total is None else f"{total:,}"
        yield [where, count, format_source(part.get("source") or {})]
    if len(parts) > 1 and total is not None:
        yield ["training, all parts", f"{total:,}", ""]
    for name, node in (record.config.get("evaluators") or {}).items():
        count = counts.get(name)
        source = format_source((node or {}).get("source") or {})
        yield [f"{name} ({node.get('name')})", "" if count is None else f"{count:,}", source]


def list_machine(start: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yields devices, machine and versions of a start, if they are known."""
    if versions := start.get("versions"):
        yield ["devices", starts.format_devices(start.get("devices") or {})]
        yield ["machine", str(start.get("machine", ""))]
        yield from ([name, version] for name, version in versions.items())


def list_processes(record: RunRecord) -> list[list[str]]:
    """Returns the first step, time and command of each start."""
    return [
        [
            f"{start.get('step', 0):,}",
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start.get("time", 0))),
            str(start.get("command", "")),
        ]
        for start in record.starts
    ]


def list_changes(record: RunRecord) -> Iterator[list[str]]:
    """Yields the fields that differ from the config file: in the file, and in the run.

    The fields that a component had are left out where another is in its place.
    """
    _, changes = record.find_changes()
    for field, (before, after) in changes.items():
        removed = after is None and starts.find_field(record.config, field) is starts.ABSENT
        if removed and f"{field.rpartition('.')[0]}.name" in changes:
            continue
        yield [field, format_value(before), "removed" if removed else format_value(after)]


def format_value(value: Any) -> str:
    """Formats the value of a field; only the beginning of a whole node."""
    if value is starts.ABSENT:
        return "–"
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or '""'
    return textwrap.shorten(json.dumps(value, default=str), 90, placeholder=" …")


def list_time(record: RunRecord) -> list[tuple[str, float, float]]:
    """Returns where the time of all processes went: what for, seconds, and the fraction."""
    spent = {PHASES.get(name, name): x for name, x in record.seconds.items()}
    shares = [(name, x, x / (sum(spent.values()) or 1)) for name, x in spent.items()]
    return [each for each in shares if each[-1] >= 0.0005]


def list_commands(record: RunRecord) -> dict[str, str]:
    """Returns the commands that continue, evaluate, use and compare the run."""
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
    commands |= list_uses(record)
    commands["Write this page again"] = f"{TOOL}.report --workdir={folder}"
    other = f"{TOOL}.report --workdir={folder} --workdir=OTHER --output=compared.html"
    commands["Compare with another run"] = other
    return commands


def list_uses(record: RunRecord) -> dict[str, str]:
    """Returns the commands that use the model of a run: classify, search, export."""
    folder, config = shlex.quote(record.workdir), record.config
    formats, commands = record.last_start.get("formats") or {}, {}
    if (find_node(config, "model.text") or {}).get("name"):
        names = shlex.quote(",".join(name_classes(record) or ("a dog", "a cat")))
        commands["Classify"] = f"{TOOL}.classify --model={folder} --names={names} PHOTO.jpg"
    source, flags = find_node(config, "data.source") or {}, "--source='photos/**/*.jpg'"
    if str(source.get("name")) in SOURCES:
        flags = write_source_flags(source)
    index = shlex.quote(f"{record.workdir.rstrip('/')}/index")
    commands["Index"] = f"{TOOL}.index --model={folder} {flags} --output={index}"
    first = "" if importlib.util.find_spec("starlette") else "  # pip install -e '.[serve]' first"
    commands["Search in a browser"] = f"{TOOL}.serve --index={index}{first}"
    opened = [name for name in ("transformers", "open_clip") if formats.get(name) == ""]
    format = next(iter(opened), "big_align")
    commands["Export"] = f"{TOOL}.convert --input={folder} --output=exported --format={format}"
    return commands


def name_classes(record: RunRecord) -> list[str]:
    """Returns some of the classes that a run measures or trains; none if their names are unknown.

    They are those of an evaluator, of the data, or of the class lists that are kept in the workdir.
    """
    data, evaluators = record.config.get("data") or {}, record.config.get("evaluators") or {}
    given = [x.get(field) for field in ("names", "benchmark") for x in evaluators.values() if x]
    given += [node.get("classes") for node in (data, *(data.get("mixture") or {}).values())]
    given += map(str, sorted(pathlib.Path(record.workdir, FOLDER).glob("*.classes*")))
    for each in given:
        found = _read_names(each) if isinstance(each, str) else each
        listed = found if isinstance(found, list | tuple) else ()
        names = [x for x in listed if isinstance(x, str) and x.strip() and "," not in x]
        if len(names) > 1:
            return names[:NAMED]
    return []


def _read_names(classes: str) -> Sequence[str]:
    """Returns the names of a class list; none if it is not here."""
    if classes == OWN_NAMES or "://" in classes:
        return ()
    try:
        return read_classes(classes).names
    except (UserError, OSError):
        return ()
