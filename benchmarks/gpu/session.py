"""What the measurements of on_gpu.py share: their form, and times in turns."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.gpu.calls import Call, compile_call, make_calls
from benchmarks.gpu.tables import Row
from benchmarks.gpu.traces import trace_calls

TURN_SECONDS = 0.1
"""About the time of a call's turn, so that starting and waiting do not count much."""


@dataclasses.dataclass
class Session:
    """What a measurement is given."""

    tiny: bool  # whether sizes are as small as a test needs
    rates: dict[str, float]  # FLOP/s of large products by type, and bytes/s of a copy: the bounds
    profile: str | None = None  # folder for a trace of three calls

    def bound(self, flops: float, moved: float, dtype: str = "bfloat16") -> float | None:
        """Returns the least seconds at the measured rates, None where they are not measured."""
        if not {dtype, "copy"} <= self.rates.keys():
            return None
        return max(flops / self.rates[dtype], moved / self.rates["copy"])


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A part of the benchmark that is done or left out as a whole."""

    name: str  # on the command line and in the file
    cost: float  # seconds that it takes on a GPU, with compilation, at a guess
    run: Callable[[Session], list[Row]]
    apart: bool = False  # whether it needs the memory of the whole device: a process of its own


def time_in_turns(
    session: Session, calls: dict[str, Call], rounds: int, turn: float
) -> dict[str, float]:
    """Returns the median seconds of each call over rounds in which they take turns.

    A turn of some seconds is several executions of a short call.
    """
    rounds = 2 if session.tiny else rounds
    repeats, seconds = {}, {name: [] for name in calls}
    for name, call in calls.items():
        begin = time.perf_counter()
        call.wait(call.start())
        once = max(time.perf_counter() - begin, 1e-6)
        repeats[name] = 1 if session.tiny else max(1, min(50, round(turn / once)))
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(repeats[name]):
                last = call.start()
            call.wait(last)
            seconds[name].append((time.perf_counter() - begin) / repeats[name])
    return {name: statistics.median(each) for name, each in seconds.items()}


def measure_turns(
    session: Session,
    makers: dict[str, Callable[[], Call]],
    bound: float | None,
    reference: str,
    rounds: int = 7,
    turn: float = TURN_SECONDS,
) -> list[Row]:
    """Times calls in turns, the most important first, and traces that one if asked to.

    `bound` is the least seconds of any call, and `reference` the one that others are compared with.
    """
    calls, rows = make_calls(makers)
    if session.profile and calls:
        trace_calls(session.profile, *next(iter(calls.items())))
    seconds = time_in_turns(session, calls, rounds, turn)
    theirs, used = seconds.get(reference), None
    if reference in calls:
        used = calls[reference].facts.get("mib")
    for name, call in calls.items():
        row = {"what": name, "ms": 1e3 * seconds[name], **call.facts}
        if bound is not None:
            row |= {"bound_ms": 1e3 * bound, "share": bound / seconds[name]}
        if theirs is not None and name != reference:
            row |= {"reference": reference, "speed": theirs / seconds[name]}
            if used and "mib" in row:
                row["memory"] = row["mib"] / used
        rows.append(row)
    return rows


def describe_device() -> Row:
    """Returns the kind of the device, how many there are, and the memory that JAX may take."""
    device = jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    described = {"device": device.device_kind, "devices": jax.local_device_count()}
    return described | ({"memory_gib": round(limit / 2**30, 1)} if limit else {})


def measure_rates(session: Session) -> list[Row]:
    """Measures a large product of both types and a copy: the bounds of everything else."""
    size, length = (256, 2**16) if session.tiny else (16384, 2**29)
    rows = []
    for dtype, edge in (("bfloat16", size), ("float32", size // 2)):
        pair = (jax.random.normal(jax.random.key(n), (edge, edge), dtype) for n in range(2))
        (row,) = measure_turns(session, {f"product, {dtype}": _product(*pair)}, None, "")
        rows.append(row | {"rate": 2 * edge**3 / row["ms"] * 1e3, "unit": "FLOP/s", "of": dtype})
    # A thread of XLA's copies four numbers: 8 bytes of bfloat16, too few for the whole bandwidth.
    array = jax.random.normal(jax.random.key(0), (length // 2,))
    copy = {"copy": lambda: compile_call(jnp.negative, array)}  # XLA leaves a mere copy out
    (row,) = measure_turns(session, copy, None, "")
    rows.append(row | {"rate": 2 * array.nbytes / row["ms"] * 1e3, "unit": "B/s", "of": "copy"})
    return rows


def _product(x: jax.Array, y: jax.Array) -> Callable[[], Call]:
    return lambda: compile_call(jnp.matmul, x, y)
