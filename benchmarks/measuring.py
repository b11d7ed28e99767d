"""What benchmarks share: command lines, times in turns, bounds, memory, tables."""

import argparse
import gc
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))
MIB = 2**20

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # for what others take


def make_parser(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Makes a command line with flags by name, each of the type of its default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="(%(default)s)")
    return parser


def time_in_turns(
    calls: Mapping[Any, Callable[[], Any]], rounds: int, untimed: int = 0
) -> dict[Any, float]:
    """Returns the median seconds of each call over rounds in which they take turns.

    Each is called once before, to compile and to start threads. The first calls of a turn may be
    untimed: they may pay for memory that another contender has given back.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(untimed):
                call()
            seconds[name].append(time_once(call))
    return {name: statistics.median(times) for name, times in seconds.items()}


def time_once(call: Callable[[], Any]) -> float:
    """Returns the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def make_matmul(dtype: str = "float32") -> tuple[Callable[[], Any], float]:
    """Returns a call of a large square matrix product, whose rate is the bound, and its FLOPs."""
    import jax
    import jax.numpy as jnp

    size = 4096 if jax.default_backend() == "cpu" else 16384
    x = jax.random.normal(jax.random.key(0), (size, size), dtype)  # zeros would be faster
    multiply = jax.jit(jnp.dot)
    return lambda: jax.block_until_ready(multiply(x, x)), 2.0 * size**3


def measure_matmul(dtype: str = "float32", rounds: int = 3) -> float:
    """Returns the FLOP/s of a large square matrix product."""
    multiply, flops = make_matmul(dtype)
    return flops / time_in_turns({"": multiply}, rounds)[""]


def describe_device() -> str:
    """Returns the kind of the device, or how many cores of the CPU there are."""
    import jax

    cpu = jax.default_backend() == "cpu"
    return f"{CORES} cores" if cpu else jax.devices()[0].device_kind


def read_memory(field: str) -> int:
    """Returns a size of this process in bytes, by its name in /proc/self/status."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


def measure_memory(call: Callable[[], Any]) -> int:
    """Returns the extra bytes that a call needs at its highest: on a GPU, of JAX's allocator."""
    import jax

    if jax.default_backend() == "gpu":
        before = jax.devices()[0].memory_stats()["bytes_in_use"]
        call()
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] - before
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Forgets the highest size so far.
    before = read_memory("VmRSS")
    call()
    return read_memory("VmHWM") - before


def run_apart(**flags: Any) -> int:
    """Runs this benchmark with flags in a fresh process; returns the number that it prints last."""
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    command = [sys.executable, sys.modules["__main__"].__file__, *given]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1])


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Prints a table in Markdown, each row as soon as it is there.

    Cells are texts, or numbers, which are shown with three digits.
    """
    print(f"\n{title}\n" if title else "")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for row in rows:
        cells = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |", flush=True)


def tell_mark(what: str, met: bool) -> None:
    """Prints whether a mark is met."""
    print(f"mark: {what}: {'met' if met else 'NOT met'}")


def read_family(pid: int) -> dict[int, dict[str, str]]:
    """Returns what /proc tells of a process and of all that it has started, by number."""
    told: dict[int, dict[str, str]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            lines = path.read_text().splitlines()
        except OSError:  # it has just ended
            continue
        told[int(path.parent.name)] = dict(line.split(":", 1) for line in lines)
    family = [pid] if pid in told else []
    for parent in family:
        family += [child for child, facts in told.items() if int(facts["PPid"]) == parent]
    return {number: told[number] for number in family}


def run_python(*arguments: str, python: str = sys.executable, **settings: Any) -> float:
    """Runs Python in the checkout; returns the seconds. What it prints is shown if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **settings,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)[:300]} failed:\n{done.stdout[-4000:]}")
    return time.perf_counter() - start
