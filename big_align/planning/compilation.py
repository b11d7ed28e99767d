"""Compiles the step of a config in a separate process, and reads what the compiler found.

XLA first decides on placement, fusion, scheduling and memory and then writes machine code, which
takes most of the time but changes none of these. So the process is stopped once the compiler has
written the assignment of buffers, unless machine code is requested: only that shows failures of the
last stage.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from big_align.core.errors import UserError
from big_align.parallel.devices.chips import CHIPS
from big_align.parallel.devices.compilation import leave_room
from big_align.parallel.devices.rematerialization import AUTO_LEVELS, take_room
from big_align.planning.machines import check_machine, virtual_devices

LAST = "-buffer-assignment.txt"
"""The end of the name of the file that XLA writes, like the program's text, before machine code."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What to compile, for which machine, and how."""

    config: str
    overrides: tuple[str, ...]  # as in `--config.batch_size=8`
    topology: str  # name of the machine
    slices: int = 1  # of TPUs
    effort: float | None = -1.0  # XLA's effort, from -1 to 1; None for its default
    machine_code: bool = False  # whether the compiler runs to the end
    level: str = AUTO_LEVELS[0]  # the least that towers recompute whose `remat` is "auto"
    room: int = 0  # bytes for what they store; set by `compile_step`
    place: str = ""  # of the stage's config in that of the run, as in "first.first"


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step that was compiled, or does not fit."""

    traced: dict[str, Any]  # what is known without compiling, see `tracing.trace`
    text: str | None  # the program; None if it does not fit
    memory: dict[str, int]  # bytes on a device, see `read_memory`; empty if it does not fit
    refused: str | None  # why the compiler did not compile it
    seconds: dict[str, float]  # wall time of tracing, and in total
    xla_bytes: float | None = None  # XLA's own count, if machine code was made


def compile_step(request: Request) -> CompiledStep:
    """Compiles a step, with the least recomputation that fits where a tower's `remat` is "auto"."""
    check_machine(request.topology, request.slices)
    limit = leave_room(CHIPS[request.topology.partition(":")[0]].usable_memory)
    request = dataclasses.replace(request, room=limit)
    while True:
        step = _compile(request)
        level, used = step.traced["level"], step.memory.get("peak")
        if not step.traced["auto"] or level == AUTO_LEVELS[-1] or (step.text and used <= limit):
            return step
        room = take_room(limit, request.room, step.traced["stored"], used)
        level = AUTO_LEVELS[AUTO_LEVELS.index(level) + 1]
        request = dataclasses.replace(request, level=level, room=room)


def _compile(request: Request) -> CompiledStep:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps(dataclasses.asdict(request)))
        status, output = _run(folder, request)
        failed, traced = _read(folder / "failed.json"), _read(folder / "traced.json")
        seconds = {"all": time.perf_counter() - start}
        if failed and failed["kind"] == "user":
            raise UserError(failed["message"])
        if traced is None:
            raise RuntimeError(f"the step could not be traced (status {status}):\n{output[-5000:]}")
        seconds["trace"] = traced["seconds"]
        if failed and failed["kind"] == "memory":
            return CompiledStep(traced, None, {}, _shorten(failed["message"]), seconds)
        dumped = sorted((folder / "dump").glob(f"*after_optimizations{LAST}"))
        if failed or status or not dumped:
            reason = failed["message"] if failed else _crash(output)
            return CompiledStep(traced, None, {}, f"the compiler failed: {reason[:300]}", seconds)
        stem = str(dumped[-1])[: -len(LAST)]
        text = Path(f"{stem}.txt").read_text()
        finished = _read(folder / "compiled.json") or {}
        memory = finished.get("memory") or read_memory(dumped[-1])
        return CompiledStep(traced, text, memory, None, seconds, finished.get("bytes"))


def _run(folder: Path, request: Request) -> tuple[int, str]:
    """Runs the process to its end or until it may stop; returns its status and its output."""
    flags = f"--xla_force_host_platform_device_count={virtual_devices(request.topology)}"
    # libtpu must not look for chips, and libraries should not print greetings.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(
        path for path in (os.getcwd(), root, os.environ.get("PYTHONPATH", "")) if path
    )
    command = [sys.executable, "-m", "big_align.planning.tracing", str(folder)]
    with open(folder / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    sizes = [0, 0, 0]
    try:
        while process.poll() is None:
            time.sleep(0.5)
            sizes = [*sizes[1:], _size_of_last(folder / "dump")]
            if not request.machine_code and sizes[0] and len(set(sizes)) == 1:
                return 0, ""
    finally:
        process.kill()
        process.wait()
    return process.returncode, (folder / "output.txt").read_text(errors="replace")


def _size_of_last(dump: Path) -> int:
    """Returns the size of the last required files, 0 before both exist; it then grows."""
    sizes = [0]
    for path in dump.glob(f"*after_optimizations{LAST}"):
        text = path.with_name(f"{path.name.removesuffix(LAST)}.txt")  # on GPUs it comes later
        if text.exists():
            sizes.append(path.stat().st_size + text.stat().st_size)
    return max(sizes)


def read_memory(path: Path) -> dict[str, int]:
    """Reads the buffers of a program in a device's main memory from XLA's buffer assignment.

    Returns bytes of `arguments` (the state, which the new state replaces in place, and the batch),
    `outputs` with buffers of their own, `temporaries`, `constants`, and `peak`: the sum of all.
    """
    memory = dict.fromkeys(("arguments", "outputs", "temporaries", "constants"), 0)
    with open(path) as lines:
        for line in lines:
            match = re.match(r"allocation \d+: size (\d+)(?:, color (\d+))?(.*)", line)
            if not match or match[2] not in (None, "0") or "thread-local" in match[3]:
                continue
            memory[_purpose(match[3])] += int(match[1])
    return memory | {"peak": sum(memory.values())}


def _purpose(description: str) -> str:
    if ", parameter " in description:
        return "arguments"
    if "live-out" in description or "output shape" in description:
        return "outputs"
    return "constants" if ", constant" in description else "temporaries"


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _shorten(message: str) -> str:
    """Returns the sentence that says how much memory is missing."""
    line = " ".join(message.split()).removeprefix("RESOURCE_EXHAUSTED: ")
    return re.split(r"(?<=\.) (?=[A-Z])", line)[0][:300]


def _crash(output: str) -> str:
    """Returns the message with which a compiler ends its process."""
    fatal = re.search(r"^F\d{4} .*?\] (.*)$", output, re.MULTILINE)
    return fatal[1] if fatal else (output.strip().splitlines() or ["no message"])[-1]
