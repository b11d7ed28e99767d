"""A trace of a few calls by JAX's profiler, and what in it takes the longest.

Kernels of programs of ours are named after the modules that they come from, as in `tools.plan
--top`, so that equal kernels of equal blocks are one line.
"""

import collections
import gzip
import json
import pathlib
import re
from collections.abc import Mapping

import jax

from benchmarks.gpu.calls import Call
from big_align.planning.hlo import parse_program
from big_align.planning.kernels.origins import UNKNOWN, Origins
from big_align.planning.traffic import walk_kernels

CALLS, SHOWN = 3, 40


def trace_calls(folder: str, name: str, call: Call) -> None:
    """Traces some calls into a folder, and prints their kernels."""
    with jax.profiler.trace(folder):
        for _ in range(CALLS):
            last = call.start()
        call.wait(last)
    files = sorted(pathlib.Path(folder).rglob("*.trace.json.gz"), key=lambda x: x.stat().st_mtime)
    events = json.loads(gzip.decompress(files[-1].read_bytes()))["traceEvents"]
    kernels = sum_kernels(events, name_kernels(call.text()) if call.text else {})
    total, count = (sum(column) for column in zip(*kernels.values(), strict=True))
    print(f"{name}: the kernels of {CALLS} calls, from {files[-1]}")
    print(f"  {1e-3 * total / CALLS:9.3f} ms, {count / CALLS:8.1f} times a call, all")
    for kernel, (microseconds, count) in list(kernels.items())[:SHOWN]:
        print(
            f"  {1e-3 * microseconds / CALLS:9.3f} ms, {count / CALLS:8.1f} times  {kernel[:130]}"
        )


def name_kernels(text: str) -> dict[str, str]:
    """Returns where instructions of a compiled program come from, where it is known, by name.

    Each is also listed by the name of its kernel: in CUDA graphs, that is all a trace has.
    """
    program = parse_program(text)
    origins, names = Origins(text, program), {}
    for run, _ in walk_kernels(program):
        module, phase, operation = origins.find(run.computation, run.instruction)
        if module != UNKNOWN:
            name = run.instruction.name
            kind = re.sub(r"[\d._]+$", "", name)
            label = f"{phase}, {module}: {operation}, {kind}"
            names |= {name: label, re.sub(r"\W", "_", name): label}
    return names


def sum_kernels(events: list[dict], names: Mapping[str, str]) -> dict[str, tuple[float, int]]:
    """Sums microseconds and counts of what devices did, the longest first.

    Events are of a trace in Chrome's format. On a GPU, kernels are in the streams of devices; on a
    CPU, operations are recognized by their argument `hlo_op`. What has no name keeps that of the
    kernel.
    """
    labels = {
        kind: {
            (each["pid"], each.get("tid") if kind == "thread_name" else None): each["args"]["name"]
            for each in events
            if each.get("name") == kind
        }
        for kind in ("process_name", "thread_name")
    }
    streams = {
        (pid, tid)
        for (pid, tid), name in labels["thread_name"].items()
        if "Stream" in name and "/device:" in labels["process_name"].get((pid, None), "")
    }
    sums: dict[str, list] = collections.defaultdict(lambda: [0.0, 0])
    for each in events:
        operation = each.get("args", {}).get("hlo_op")
        counts = (each.get("pid"), each.get("tid")) in streams if streams else operation
        if each.get("ph") == "X" and counts:
            label = names.get(operation) or names.get(each["name"]) or each["name"]
            total = sums[label]
            total[0] += each["dur"]
            total[1] += 1
    longest = sorted(sums.items(), key=lambda item: -item[1][0])
    return {name: (duration, count) for name, (duration, count) in longest}
