"""The report of a plan: numbers as JSON values, and the same numbers as a table."""

import math
from collections.abc import Sequence
from typing import Any

from big_align.parallel.devices.chips import CHIPS, Chip
from big_align.planning.collectives import list_collectives
from big_align.planning.compilation import CompiledStep, Request
from big_align.planning.executed import count_executed_flops, count_unknown_loops
from big_align.planning.hlo import parse_program
from big_align.planning.reports.bounds import bound_step
from big_align.planning.topologies import GENERATIONS
from big_align.planning.traffic import count_traffic, walk_kernels

GIB = 2**30
STANDS_IN = (
    "JAX is not installed for CUDA here: the program and its memory are those compiled for as many "
    "CPUs, which compute bfloat16 in float32, so its temporaries, bytes and collectives count "
    "twice; pip install '.[cuda]' plans with XLA's compiler for GPUs, and needs none of them"
)
UNTRIED = "kernels are chosen by rule: on a GPU, XLA tries several, and fuses more of its products"
UNFINISHED = (
    "machine code is not made: its scratch memory, a few percent more, and failures of that last "
    "stage do not show; --machine_code makes it"
)


LESS_EFFORT = (
    "XLA's effort is {effort:g}: at its default it fuses more, keeps more on the chip and hides "
    "collectives behind computations; --effort=default takes longer"
)


def make_report(
    request: Request,
    program: CompiledStep,
    *,
    price: float | None = None,
    images_per_core: float | None = None,
) -> dict[str, Any]:
    """Gathers what is known about a step; the price is in dollars per hour for one chip."""
    traced, chip = program.traced, CHIPS[request.topology.partition(":")[0]]
    fits = program.text is not None and program.memory["peak"] <= chip.usable_memory
    report: dict[str, Any] = {
        "config": request.config,
        "overrides": list(request.overrides),
        "topology": request.topology,
        "slices": request.slices,
        **{name: traced[name] for name in ("chips", "devices", "hosts", "mesh", "parameters")},
        **{name: traced[name] for name in ("batch_size", "total_steps")},
        "fits": fits,
        "refused": program.refused,
        "memory": {**program.memory, "capacity": chip.usable_memory},
        "compilation": {
            "effort": request.effort,
            "machine_code": request.machine_code,
            "seconds": program.seconds,
        },
        "notes": _list_notes(request, program),
    }
    if program.text is not None:
        report |= _describe_step(program, chip, report["notes"])
        report |= _describe_run(report, traced, chip, price, images_per_core)
    return report


def _describe_step(program: CompiledStep, chip: Chip, notes: list[str]) -> dict[str, Any]:
    """Counts what a compiled step executes, reads and sends, and its least time."""
    traced, hlo = program.traced, parse_program(program.text)
    executed, traffic = count_executed_flops(hlo), count_traffic(hlo)
    kernels = sum(run.times for run, _ in walk_kernels(hlo))
    devices, useful = traced["devices"], traced["useful_flops"]
    sent = [each for each in list_collectives(hlo, traced["places"]) if each.devices > 1]
    bound = bound_step(chip, executed.total(), traffic, sent)
    if loops := count_unknown_loops(hlo):
        notes.append(f"{loops} loops run an unknown number of times and count once")
    if bound.between is None:
        notes.append(f"the network between slices of {chip.name} is not published")
    replicated = executed.total() * devices - traced["traced_flops"]
    return {
        "flops": {
            "useful": useful,
            "recomputed": traced["traced_flops"] - useful,
            "replicated": max(0.0, replicated),
            "executed_per_device": executed.total(),
            "by_type": dict(executed),
        },
        "bytes": {"per_device": traffic, "xla": program.xla_bytes},
        "kernels": kernels,
        "collectives": [vars(each) for each in sent],
        "time": {
            **bound.parts,
            "bound": bound.seconds,
            "binds": bound.binds,
            "in_turn": bound.in_turn,
        },
    }


def _describe_run(
    report: dict[str, Any],
    traced: dict[str, Any],
    chip: Chip,
    price: float | None,
    images_per_core: float | None,
) -> dict[str, Any]:
    """Scales the bound of a step up: rates, the whole run, and what a host has to load."""
    seconds = report["time"]["bound"]
    rate = traced["batch_size"] / seconds
    hours = traced["total_steps"] * seconds / 3600
    per_host = rate * traced["images_per_example"] / traced["hosts"]
    peak = traced["devices"] * chip.device_flops
    return {
        "rate": {
            "images_per_second": rate,
            "utilization": traced["useful_flops"] / (seconds * peak),
        },
        "run": {
            "hours": hours,
            "chip_hours": hours * traced["chips"],
            "price": price,
            "cost": None if price is None else price * hours * traced["chips"],
        },
        "host": {
            "images_per_second": per_host,
            "images_per_core": images_per_core,
            "cores": math.ceil(per_host / images_per_core) if images_per_core else None,
        },
    }


def _list_notes(request: Request, program: CompiledStep) -> list[str]:
    notes = [*program.traced["assumed"], *program.traced.get("chosen", ())]
    if program.traced["stands_in"]:
        return [*notes, STANDS_IN]
    if request.topology.partition(":")[0] not in GENERATIONS:
        notes.append(UNTRIED)
    elif request.effort is not None and request.effort < 0:
        notes.append(LESS_EFFORT.format(effort=request.effort))
    if not request.machine_code:
        notes.append(UNFINISHED)
    return notes


def format_report(report: dict[str, Any]) -> str:
    """Formats a report as text."""
    lines = [
        format_machine(report),
        row("overrides", " ".join(report["overrides"])) if report["overrides"] else "",
        row("mesh", ", ".join(f"{name} {size}" for name, size in report["mesh"].items())),
        row("parameters", f"{report['parameters']:,}"),
        row("batch", f"{report['batch_size']:,}, {report['total_steps']:,} steps"),
        *_format_memory(report),
    ]
    if "flops" in report:
        lines += [*_format_work(report), *_format_time(report), *_format_collectives(report)]
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(line for line in lines if line)


def format_machine(report: dict[str, Any]) -> str:
    """Formats what is planned, and for which machine."""
    slices = f", {report['slices']} slices" if report["slices"] > 1 else ""
    return (
        f"{report['config']} on {report['topology']}{slices}: {report['chips']:,} chips, "
        f"{report['devices']:,} devices, {report['hosts']:,} hosts"
    )


def row(name: str, value: str) -> str:
    """Formats a line of a report."""
    return f"  {name:<24} {value}"


def _format_memory(report: dict[str, Any]) -> list[str]:
    memory = report["memory"]
    capacity = f"{memory['capacity'] / GIB:.1f} GiB"
    if report["refused"]:
        return [row("fits", f"no: {report['refused']}")]
    answer = "yes" if report["fits"] else "no"
    used = f"{memory['peak'] / GIB:.2f} of {capacity} a device"
    parts = ", ".join(
        f"{name} {memory[name] / GIB:.2f}" for name in ("arguments", "outputs", "temporaries")
    )
    return [row("fits", f"{answer}: {used}"), row("", f"({parts})")]


def _format_work(report: dict[str, Any]) -> list[str]:
    flops, devices = report["flops"], report["devices"]
    parts = ", ".join(
        f"{_scale(flops[name] / devices)} {name}" for name in ("useful", "recomputed", "replicated")
    )
    moved = f"{_scale(report['bytes']['per_device'])} read and written"
    lines = [
        row("FLOPs of a device", f"{_scale(flops['executed_per_device'])} executed"),
        row("", f"({parts})"),
        row("bytes of a device", f"{moved}, by {report['kernels']:,} kernels"),
    ]
    if xla := report["bytes"]["xla"]:
        lines.append(row("", f"({_scale(xla)} by XLA, which counts inside of fusions too)"))
    return lines


def _scale(count: float | int) -> str:
    """Formats a count with a prefix: "1.23 T"."""
    for prefix, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= unit:
            return f"{count / unit:.2f} {prefix}"
    return f"{count:,.0f}"


def _format_time(report: dict[str, Any]) -> list[str]:
    time, rate, run, host = (report[name] for name in ("time", "rate", "run", "host"))
    named = {"compute": "FLOPs", "memory": "memory", "inside": "links", "between": "network"}
    parts = ", ".join(
        f"{label} {time[name] * 1e3:.1f}" for name, label in named.items() if name in time
    )
    cost = "" if run["cost"] is None else f", ${run['cost']:,.0f} at ${run['price']:g} a chip-hour"
    speed = f"{rate['images_per_second']:,.0f} images/s"
    whole = f"{run['hours']:,.1f} h, {run['chip_hours']:,.1f} chip-hours"
    lines = [
        row("step, at least", f"{time['bound'] * 1e3:.1f} ms, bound by {named[time['binds']]}"),
        row("", f"(ms: {parts}; in turn {time['in_turn'] * 1e3:.1f})"),
        row("at most", f"{speed}, {rate['utilization']:.0%} of the chips' FLOP/s useful"),
        row("whole run, at least", whole + cost),
    ]
    return [*lines, row("each host has to load", format_host(host))]


def format_host(host: dict[str, Any]) -> str:
    """Formats what a host has to load."""
    if not host["images_per_second"]:
        return "no images: their features are computed beforehand"
    needs = f"{host['images_per_second']:,.0f} images/s"
    if host["cores"]:
        needs += f": {host['cores']:,} cores at {host['images_per_core']:,.0f} images/s each"
    return needs


def _format_collectives(report: dict[str, Any]) -> list[str]:
    if not report["collectives"]:
        return []
    head = f"  {'collective':<20}{'type':>6}{'of devices':>12}{'over':>6}{'count':>8}{'hidden':>8}"
    head += f"{'MiB':>12}{'MiB sent inside':>18}{'between':>12}"
    rows = [
        f"  {each['kind']:<20}{each['dtype']:>6}{each['devices']:>12}{each['places']:>6}"
        f"{each['count']:>8}{each['overlapped']:>8}{each['bytes'] / 2**20:>12.2f}"
        f"{each['sent_inside'] / 2**20:>18.2f}{each['sent_between'] / 2**20:>12.2f}"
        for each in report["collectives"]
    ]
    return [head, *rows, "  (hidden: how many of the count run while the devices compute)"]


COLUMNS = ("fits", "GiB", "ms", "bound by", "images/s", "useful", "chip-hours", "cost")


def format_comparison(names: Sequence[str], reports: Sequence[dict[str, Any]]) -> str:
    """Formats several reports, one line each."""
    width = max(map(len, names)) + 2
    lines = ["".join([" " * width, *(f"{column:>12}" for column in COLUMNS)])]
    for name, report in zip(names, reports, strict=True):
        cells = ["yes" if report["fits"] else "no"]
        cells.append(f"{report['memory']['peak'] / GIB:.2f}" if "peak" in report["memory"] else "-")
        if "time" in report:
            cells += [
                f"{report['time']['bound'] * 1e3:.1f}",
                report["time"]["binds"],
                f"{report['rate']['images_per_second']:,.0f}",
                f"{report['rate']['utilization']:.0%}",
            ]
        elif "run" in report:  # of several stages
            cells += ["-"] * 4
        if "run" in report:
            cost = report["run"]["cost"]
            cells += [
                f"{report['run']['chip_hours']:,.0f}",
                "-" if cost is None else f"${cost:,.0f}",
            ]
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
