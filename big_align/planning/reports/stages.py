"""A run of several stages: the plan of each, and of the whole."""

from typing import Any

from big_align.config.stages import FIRST, list_stages
from big_align.core.nodes import Node
from big_align.planning.reports.report import format_comparison, format_host, format_machine, row

SHARED = ("config", "topology", "slices", "chips", "devices", "hosts")


def find_stages(config: Node) -> dict[str, Node]:
    """Returns the configs of the stages of a run by their places, the earliest first.

    The run's own is last, at ""; the one before it is at "first", before that at "first.first".
    """
    stages = list_stages(config)
    return {".".join([FIRST] * (len(stages) - n)): each for n, each in enumerate(stages, 1)}


def add_up(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the report of a run from those of its stages: that of its only stage, or a sum."""
    if len(reports) == 1:
        return reports[0]
    whole = {name: reports[-1][name] for name in SHARED}
    whole["overrides"] = [*dict.fromkeys(flag for each in reports for flag in each["overrides"])]
    whole["total_steps"] = sum(report["total_steps"] for report in reports)
    whole["fits"] = all(report["fits"] for report in reports)
    whole["memory"] = max((each["memory"] for each in reports), key=lambda m: m.get("peak", 0))
    if all("run" in report for report in reports):
        runs = [report["run"] for report in reports]
        whole["run"] = {name: _add([run[name] for run in runs]) for name in runs[0]}
        whole["run"]["price"] = runs[0]["price"]
    return whole | {"notes": _list_notes(reports), "stages": reports}


def _add(numbers: list[float | None]) -> float | None:
    return None if None in numbers else sum(numbers)


def _list_notes(reports: list[dict[str, Any]]) -> list[str]:
    """Returns the notes of all stages; those that not every one has name theirs."""
    shared = [note for note in reports[0]["notes"] if all(note in r["notes"] for r in reports)]
    own = [
        f"stage {number}: {note}"
        for number, report in enumerate(reports, 1)
        for note in report["notes"]
        if note not in shared
    ]
    return own + shared


def format_stages(report: dict[str, Any]) -> str:
    """Formats the report of a run of several stages: a line for each, and one for the whole."""
    stages = report["stages"]
    names = [
        f"  {number}: {stage['total_steps']:,} steps of {stage['batch_size']:,}"
        for number, stage in enumerate(stages, 1)
    ]
    lines = [format_machine(report), format_comparison([*names, "  all"], [*stages, report])]
    lines += [
        row(f"stage {number}", f"does not fit: {stage['refused']}")
        for number, stage in enumerate(stages, 1)
        if stage["refused"]
    ]
    lines += [
        row("each host has to load", f"in stage {number} {format_host(stage['host'])}")
        for number, stage in enumerate(stages, 1)
        if "host" in stage
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])
