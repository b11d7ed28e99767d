"""The instructions of a compiled step that move the most bytes, and where they come from.

On a GPU, an instruction outside fusions is a kernel. Equal ones of equal blocks are counted
together.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from big_align.parallel.devices.chips import CHIPS, Chip
from big_align.planning.executed import count_flops_inside
from big_align.planning.hlo import Instruction, parse_program
from big_align.planning.kernels.origins import PHASES, UNKNOWN, Origins
from big_align.planning.traffic import walk_kernels

_MADE_BY = re.compile(r'"kind":"__(\w+)"')
DEPTH = 3  # modules in the name of a group, such as image/block_*/mlp
GROUPS = 12  # groups that are shown on lines of their own


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Instructions of one kind that come from equal modules, with equal outputs, in one step."""

    module: str  # where they come from, see `origins`
    phase: str  # one of `origins.PHASES`, or "?"
    operation: str  # JAX's name of the operation that each is named after
    kind: str  # opcode, kind of fusion, or the name of what is called
    output: str  # type and shape of the largest output
    times: int = 0  # executions, loops included
    bytes: int = 0  # read from main memory and written to it, by all of them
    flops: int = 0  # of products and convolutions, of all of them
    seconds: float = 0.0  # at the chip's peaks at least, one after the other


def list_kernels(text: str, chip: Chip) -> list[Kernels]:
    """Lists the kernels of a program, those that move the most bytes first."""
    program = parse_program(text)
    origins, found = Origins(text, program), {}
    for run, moved in walk_kernels(program):
        each, times = run.instruction, run.times
        flops = count_flops_inside(program, run)
        least = max(moved / chip.device_memory_bandwidth, flops / chip.device_flops)
        key = *origins.find(run.computation, each), name_kind(each), _name_output(each)
        old = found.get(key, Kernels(*key))
        found[key] = dataclasses.replace(
            old,
            times=old.times + times,
            bytes=old.bytes + times * moved,
            flops=old.flops + times * flops,
            seconds=old.seconds + times * least,
        )
    return sorted(found.values(), key=lambda each: -each.bytes)


def name_kind(instruction: Instruction) -> str:
    """Returns the opcode of an instruction, with the kind of a fusion or the target of a call."""
    if target := instruction.attribute("custom_call_target"):
        return target.strip('"')
    if not instruction.opcode.startswith("fusion"):
        return instruction.opcode
    kind = (instruction.attribute("kind") or "").removeprefix("k").lower()
    if kind == "custom" and (made := _MADE_BY.search(instruction.attributes)):
        kind = made[1].removesuffix("_fusion")
    return f"{kind} {instruction.opcode}".strip()


def _name_output(instruction: Instruction) -> str:
    largest = max(instruction.outputs, key=lambda array: array.bytes, default=None)
    if largest is None:
        return "()"
    return f"{largest.dtype}[{','.join(map(str, largest.shape))}]"


def group_bytes(kernels: Sequence[Kernels]) -> dict[str, dict[str, int]]:
    """Sums bytes by module, cut to `DEPTH` names, and phase; the largest sum of a module first."""
    groups: dict[str, dict[str, int]] = {}
    for each in kernels:
        group = groups.setdefault("/".join(each.module.split("/")[:DEPTH]), {})
        group[each.phase] = group.get(each.phase, 0) + each.bytes
    return dict(sorted(groups.items(), key=lambda item: -sum(item[1].values())))


def describe_kernels(text: str, chip: str, top: int) -> dict[str, Any]:
    """Returns the `top` largest kernels of a program as JSON values, and the sums of all."""
    kernels = list_kernels(text, CHIPS[chip])
    return {
        "kernels": [vars(each) for each in kernels[:top]],
        "groups": group_bytes(kernels),
        "bytes": sum(each.bytes for each in kernels),
        "seconds": sum(each.seconds for each in kernels),
    }


def format_kernels(top: dict[str, Any]) -> list[str]:
    """Formats what `describe_kernels` returns, one line for each kind and each group."""
    columns = f"  {'MB':>10}{'times':>7}{'MB each':>10}{'GFLOP':>11}{'ms':>9}"
    lines = [f"{columns}  phase, module: operation, kind, output"]
    for each in top["kernels"]:
        size, times = each["bytes"] / 1e6, each["times"]
        lines.append(
            f"  {size:10,.1f}{times:7,}{size / times:10,.1f}{each['flops'] / 1e9:11,.1f}"
            f"{each['seconds'] * 1e3:9.3f}  {each['phase']}, {each['module']}: "
            f"{each['operation']}, {each['kind']}, {each['output']}"
        )
    phases = (*PHASES, UNKNOWN)
    lines.append("  MB" + "".join(f"{phase:>12}" for phase in ("all", *phases)) + "  module")
    groups = list(top["groups"].items())
    rest: Counter[str] = Counter()
    for _, group in groups[GROUPS:]:
        rest.update(group)
    for name, group in [*groups[:GROUPS], ("others", rest)]:
        sizes = [sum(group.values()), *(group.get(phase, 0) for phase in phases)]
        lines.append("    " + "".join(f"{size / 1e6:12,.1f}" for size in sizes) + f"  {name}")
    lines.append(
        f"  each of these kernels at the chip's peaks, in turn: {top['seconds'] * 1e3:.1f} ms"
    )
    return lines
