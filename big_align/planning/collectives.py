"""What a compiled program sends between devices: kinds, types, sizes, and over which network."""

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from big_align.planning import replica_groups
from big_align.planning.executed import Run, walk
from big_align.planning.hlo import HloProgram

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
COMPUTE = ("fusion", "dot", "convolution", "custom-call")
"""Operations that a collective can overlap with."""
CHAIN = re.compile(r'chain_id="(\d+)"')  # what the steps of one collective have in common


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind, type and group of devices, in one step."""

    kind: str  # one of `KINDS`
    dtype: str
    devices: int  # that take part together
    places: int  # slices or nodes of these devices
    count: int  # executions, loops included; arrays of several types count for each
    bytes: int  # of whole arrays: what an all-gather makes, what a reduce-scatter takes
    sent_inside: float  # bytes that one device sends within its slice or node
    sent_between: float  # bytes that one device sends to others
    overlapped: int = 0  # how many of `count` overlap with computations


def list_collectives(program: HloProgram, places: Sequence[int]) -> list[Collective]:
    """Lists collectives, the largest first; `places` has each device's slice or node."""
    found: dict[tuple, Collective] = {}
    chains = set()
    for run in walk(program):
        kind = _kind(run)
        if kind is None:
            continue
        # TPUs split an asynchronous collective into steps, each in a fusion that runs beside it.
        if chain := CHAIN.search(run.instruction.attributes):
            if (kind, chain[1]) in chains:
                continue
            chains.add((kind, chain[1]))
        groups = _groups(run, kind, len(places))
        devices = max(map(len, groups))
        crossed = max(len({places[device] for device in group}) for group in groups)
        for dtype, size in _sizes(run).items():
            whole = size * devices if kind == "all-gather" else size
            inside, between = _sent(kind, whole, devices, crossed)
            key = kind, dtype, devices, crossed
            old = found.get(key, Collective(*key, 0, 0, 0.0, 0.0))
            found[key] = dataclasses.replace(
                old,
                count=old.count + run.times,
                bytes=old.bytes + run.times * whole,
                sent_inside=old.sent_inside + run.times * inside,
                sent_between=old.sent_between + run.times * between,
                overlapped=old.overlapped + run.times * (chain is not None or _overlaps(run)),
            )
    return sorted(found.values(), key=lambda each: -each.bytes)


def _overlaps(run: Run) -> bool:
    """Returns whether something is computed between the start and the end of a collective."""
    if run.caller and run.caller.instruction.opcode == "async-start":
        run = run.caller  # some compilers wrap a collective
    if not run.instruction.opcode.endswith("-start"):
        return False
    schedule = list(run.computation.instructions)
    begin = schedule.index(run.instruction.name)
    (end,) = (each.name for each in run.computation.users[run.instruction.name])
    between = schedule[begin + 1 : schedule.index(end)]
    return any(run.computation.instructions[name].opcode in COMPUTE for name in between)


def _kind(run: Run) -> str | None:
    """Returns which collective an instruction is; None for the end of an asynchronous one."""
    kind = run.instruction.opcode.removesuffix("-start")
    if kind == "ragged-all-to-all":
        return "all-to-all"
    if kind not in KINDS:
        return None
    # TPUs reduce-scatter with a fusion that sums and keeps a slice.
    users = run.computation.users[run.instruction.name]
    if kind == "all-reduce" and run.fused and users:
        if all(user.opcode == "dynamic-slice" for user in users):
            return "reduce-scatter"
    return kind


def _sizes(run: Run) -> Counter[str]:
    """Returns the bytes of the inputs by their types."""
    sizes: Counter[str] = Counter()
    for arrays in run.computation.operand_arrays(run.instruction):
        for array in arrays:
            sizes[array.dtype] += array.bytes
    return sizes


def _groups(run: Run, kind: str, num_devices: int) -> list[list[int]]:
    if kind == "collective-permute":
        text = run.instruction.attribute("source_target_pairs") or ""
        pairs = replica_groups.parse_lists(text)
        return [pair for pair in pairs if pair[0] != pair[1]] or [[0]]
    text = run.instruction.attribute("replica_groups")
    return replica_groups.parse_groups(text, num_devices)


def _sent(kind: str, whole: int, devices: int, places: int) -> tuple[float, float]:
    """Returns the bytes that one device has to send within its place, and to others.

    Rings within each place, then rings over the places for each device's part of the result: in an
    all-gather of n devices, each sends (n - 1) / n of the whole; in an all-reduce, twice that.
    """
    if kind == "collective-permute":
        return (0.0, float(whole)) if places > 1 else (float(whole), 0.0)
    rounds = 2 if kind == "all-reduce" else 1
    here = devices / places
    if kind == "all-to-all":
        return whole * (here - 1) / devices, whole * (devices - here) / devices
    inside = rounds * whole * (here - 1) / here
    between = rounds * whole / here * (places - 1) / places
    return inside, between
