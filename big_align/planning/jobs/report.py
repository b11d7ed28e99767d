"""The report of a job: its programs one by one, and what they add up to."""

from collections.abc import Mapping
from typing import Any

import jax

from big_align.core.errors import UserError
from big_align.parallel.devices.chips import Chip
from big_align.parallel.devices.compilation import compile_lowered
from big_align.planning.collectives import list_collectives
from big_align.planning.executed import count_executed_flops, count_unknown_loops
from big_align.planning.hlo import HloProgram, parse_program
from big_align.planning.jobs.requests import JobProgram, JobRequest, TracedJob
from big_align.planning.machines import Machine
from big_align.planning.reports.bounds import Bound, bound_step
from big_align.planning.reports.report import GIB, format_machine, row
from big_align.planning.traffic import count_traffic

NAMED = {"compute": "FLOPs", "memory": "memory", "inside": "links", "between": "network"}


def make_report(
    request: JobRequest, machine: Machine, traced: TracedJob, price: float | None
) -> dict[str, Any]:
    """Compiles the programs of a job, and adds them up; the price is of a chip-hour."""
    programs = [_describe(each, traced) for each in traced.programs]
    chips, hosts = machine.num_chips, machine.hosts
    seconds = sum(each["seconds"] * each["times"] for each in programs)
    in_pass = [each for each in programs if each["pass"]]
    pass_seconds = sum(each["seconds"] * each["pass"] for each in in_pass)
    read = next(iter(traced.read.values())) / machine.chip.network if machine.chip.network else 0.0
    useful = sum(each["useful"] * each["pass"] for each in in_pass)
    peak = max((each["bytes"] for each in programs), default=0) + traced.held
    hours = seconds / 3600
    return {
        "job": request.job,
        "config": request.config or request.job,
        "topology": request.topology,
        "slices": request.slices,
        "chips": chips,
        "devices": len(machine.devices),
        "hosts": hosts,
        "rows": request.rows,
        "dim": request.dim,
        "centers": request.centers,
        "candidates": request.candidates,
        "mesh": dict(traced.mesh.shape),
        "fits": peak <= machine.chip.usable_memory,
        "memory": {"peak": peak, "capacity": machine.chip.usable_memory},
        "programs": programs,
        "pass": {
            "seconds": pass_seconds,
            "read_seconds": read,
            "useful_seconds": useful / _rate(request, machine.chip) / traced.mesh.size,
            "binds": max(in_pass, key=lambda each: each["seconds"] * each["pass"])["binds"],
        },
        "run": {
            "hours": hours,
            "chip_hours": hours * chips,
            "price": price,
            "cost": None if price is None else price * hours * chips,
        },
        "host": traced.host,
        "disk": traced.disk,
        "read": traced.read,
        "facts": traced.facts,
        "notes": traced.notes,
    }


def _rate(request: JobRequest, chip: Chip) -> float:
    """Returns the FLOP/s of a device for the products of a job."""
    exact = request.job == "duplicates" or (request.job == "cluster" and not request.candidates)
    return chip.device_float32_flops if exact else chip.device_flops


def _describe(program: JobProgram, traced: TracedJob) -> dict[str, Any]:
    """Compiles a program; returns what it computes, moves and holds, and its least time."""
    try:
        compiled = compile_lowered(program.lowered, {})
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{program.name} cannot be compiled: {reason}") from error
    hlo = parse_program(compiled.as_text())
    stats = compiled.memory_analysis()
    held = stats.argument_size_in_bytes + stats.temp_size_in_bytes
    held += stats.output_size_in_bytes - stats.alias_size_in_bytes
    bound = _bound(hlo, traced)
    return {
        "name": program.name,
        "times": program.times,
        "pass": program.pass_,
        "seconds": bound.seconds,
        "binds": bound.binds,
        "parts": bound.parts,
        "useful": program.useful,
        "executed_per_device": count_executed_flops(hlo).total(),
        "bytes": held,
        "unknown_loops": count_unknown_loops(hlo),
    }


def _bound(hlo: HloProgram, traced: TracedJob) -> Bound:
    """Bounds the time of a program, in which float32 has its own peak: no digit is given up."""
    machine = traced.machine
    chip, executed = machine.chip, count_executed_flops(hlo)
    flops = executed.total() + executed["f32"] * (chip.device_flops / chip.device_float32_flops - 1)
    places = [machine.place(device) for device in traced.mesh.devices.flat]
    sent = [each for each in list_collectives(hlo, places) if each.devices > 1]
    return bound_step(chip, flops, count_traffic(hlo), sent)


def format_job(report: dict[str, Any]) -> str:
    """Formats the report of a job as text."""
    memory, run = report["memory"], report["run"]
    answer = "yes" if report["fits"] else "no"
    what = f"{report['job']}: {report['rows']:,} images"
    if report["job"] != "embed":
        what += f" x {report['dim']}, against {report['centers']:,}"
    cost = "" if run["cost"] is None else f", ${run['cost']:,.0f} at ${run['price']:g} a chip-hour"
    lines = [
        what,
        format_machine(report),
        row("mesh", ", ".join(f"{name} {size}" for name, size in report["mesh"].items())),
        row("fits", f"{answer}: {memory['peak'] / GIB:.2f} of {memory['capacity'] / GIB:.1f} GiB "
            "a device"),
        *_format_programs(report["programs"]),
        *_format_pass(report),
        row("all, at least",
            f"{_time(run['hours'] * 3600)}, {run['chip_hours']:,.1f} chip-hours{cost}"),
        *_format_bytes("a host's memory", report["host"]),
        *_format_bytes("a host reads", report["read"]),
        *_format_bytes("disk, in all", report["disk"]),
    ]  # fmt: skip
    lines += [row(name, f"{value:,.0f}") for name, value in report["facts"].items()
              if name != "images_per_core"]  # fmt: skip
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])


def _format_programs(programs: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"  {'program':<30}{'runs':>12}{'ms':>10}{'bound by':>10}{'FLOPs':>9}{'memory':>9}"
        f"{'links':>9}{'network':>9}{'GiB':>8}"
    ]
    for each in programs:
        parts = (each["parts"].get(name, 0) * 1e3 for name in NAMED)
        lines.append(
            f"  {each['name']:<30}{each['times']:>12,}{each['seconds'] * 1e3:>10.2f}"
            f"{NAMED[each['binds']]:>10}" + "".join(f"{part:>9.2f}" for part in parts)
            + f"{each['bytes'] / GIB:>8.2f}"
        )  # fmt: skip
    return lines


def _format_pass(report: dict[str, Any]) -> list[str]:
    done = report["pass"]
    if report["job"] == "embed":
        rate = report["rows"] / (report["run"]["hours"] * 3600)
        host = rate / report["hosts"]
        speed = report["facts"]["images_per_core"]
        return [
            row("at most", f"{rate:,.0f} images/s"),
            row("each host has to load", f"{host:,.0f} images/s: {host / speed:,.0f} cores at "
                f"{speed:,.0f} each"),
        ]  # fmt: skip
    read = sum(list(report["read"].values())[:1]) / done["seconds"]
    told = f"hosts read {read / 1e9:.2f} GB/s each"
    if done["read_seconds"] > done["seconds"]:
        told = f"but hosts read, at their network's speed, for {_time(done['read_seconds'])}"
    return [
        row("a pass, at least", f"{_time(done['seconds'])}, bound by {NAMED[done['binds']]} "
            f"(2 n k d: {_time(done['useful_seconds'])}); {told}"),
    ]  # fmt: skip


def _format_bytes(name: str, parts: Mapping[str, float | int]) -> list[str]:
    told = ", ".join(f"{what} {size / 1e9:,.1f}" for what, size in parts.items() if size)
    return [row(name, f"{sum(parts.values()) / 1e9:,.1f} GB ({told})")]


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
