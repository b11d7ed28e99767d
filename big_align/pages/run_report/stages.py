"""What the page about a run says of the stages before it: a table, and curves one after another."""

import dataclasses
import itertools
import math
from typing import Any

from big_align.core.nodes import find_node
from big_align.pages.charts import Series
from big_align.pages.rendering import format_number, format_time
from big_align.pages.run_report.run_record import RunRecord

HEAD = ["stage", "steps", "examples seen", "image", "text length", "batch", "time", "chip-hours"]


def list_stages(record: RunRecord) -> dict[str, Any]:
    """Returns the table of the stages of a run and their sums, without rows for a single one."""
    stages = record.stages
    if len(stages) == 1:
        return {"head": HEAD, "rows": []}
    rows, sums = [], [0, 0, 0.0, 0.0]
    for number, stage in enumerate(stages, 1):
        batch = int(stage.config.get("batch_size") or 0)
        spent = math.fsum(stage.seconds.values())
        counted = [stage.step, stage.step * batch, spent, stage.chip_hours]
        sums = [a + b for a, b in zip(sums, counted, strict=True)]
        total = f" of {stage.total_steps:,}" if stage.step != stage.total_steps else ""
        seen = stage.last_start.get("inputs") or {}
        image = " x ".join(map(str, seen.get("image") or ()))
        shown = [image and f"{image} px", str(seen.get("text") or ""), f"{batch:,}"]
        rows.append([str(number), f"{stage.step:,}{total}", f"{counted[1]:,}", *shown])
        rows[-1] += _format_costs(spent, stage.chip_hours)
    rows.append(["in all", f"{sums[0]:,}", f"{sums[1]:,}", "", "", ""])
    rows[-1] += _format_costs(*sums[2:])
    return {"head": HEAD, "rows": rows}


def tell_training(record: RunRecord) -> list[str]:
    """Returns a line for each stage that says what trains: objective, towers, batch, optimizer."""
    told = [_tell_config(stage.config) for stage in record.stages]
    several = len(told) > 1
    return [f"stage {n}: {line}" if several else line for n, line in enumerate(told, 1) if line]


def _tell_config(config: dict[str, Any]) -> str:
    """Returns what a config trains; what it does not say is left out."""
    objective = find_node(config, "objective") or {}
    parts = [f"objective {objective['name']}"] if objective.get("name") else []
    locked = (find_node(config, "model") or {}).get("locked")
    for part in ("image", "text"):
        node = find_node(config, f"model.{part}") or {}
        if node.get("name"):
            sizes = [f"{x} {node[x]}" for x in ("width", "depth") if isinstance(node.get(x), int)]
            name = " ".join(str(x) for x in (node["name"], node.get("variant")) if x)
            kind = f"locked {part}" if isinstance(locked, list) and part in locked else part
            parts.append(f"{kind} tower {name}" + (f" ({', '.join(sizes)})" if sizes else ""))
    parts += [
        f"{field} {config[name]:,}"
        for field, name in (("batch size", "batch_size"), ("steps", "total_steps"))
        if isinstance(config.get(name), int)
    ]
    optimizer, schedule = (find_node(config, x) or {} for x in ("optimizer", "schedule"))
    if optimizer.get("name"):
        rate = schedule.get("learning_rate")
        at = f" at a learning rate of {rate:g}" if isinstance(rate, int | float) else ""
        parts.append(f"{optimizer['name']}{at}")
    return "; ".join(parts)


def _format_costs(seconds: float, hours: float) -> list[str]:
    return [format_time(seconds) if seconds else "", format_number(hours) if hours else ""]


def tell_costs(record: RunRecord) -> list[str]:
    """Returns a line about what each stage of a run has cost so far; none of a single one."""
    spent = [stage.chip_hours for stage in record.stages]
    told = [f"stage {number} {hours:.3g}" for number, hours in enumerate(spent, 1) if hours]
    if len(spent) == 1 or not told:
        return []
    return [f"chip-hours: {', '.join(told)}, in all {sum(spent):.3g}"]


def join_stages(record: RunRecord) -> tuple[RunRecord, list[int]]:
    """Returns a run as if its stages were one, and the steps after which each but the first begins.

    Steps are counted through, and what is not counted is that of the last stage.
    """
    stages = record.stages
    ends = list(itertools.accumulate(stage.total_steps for stage in stages))
    starts = [0, *ends[:-1]]
    joined: dict[str, Any] = {
        field: _join([getattr(stage, field) for stage in stages], starts)
        for field in ("series", "evaluations")
    }
    names = dict.fromkeys(name for stage in stages for name in stage.seconds)
    seconds = {name: sum(stage.seconds.get(name, 0.0) for stage in stages) for name in names}
    last = max(a + b.step if b.step else 0 for a, b in zip(starts, stages, strict=True))
    config = record.config | {"total_steps": ends[-1]}
    made = dataclasses.replace(record, **joined, seconds=seconds, saved=last, config=config)
    return made, starts[1:]


def _join(parts: list[dict[str, Series]], starts: list[int]) -> dict[str, Series]:
    """Joins curves by name; each part begins after a step."""
    joined: dict[str, Series] = {}
    for curves, start in zip(parts, starts, strict=True):
        for name, values in curves.items():
            joined.setdefault(name, []).extend((start + step, value) for step, value in values)
    return joined
