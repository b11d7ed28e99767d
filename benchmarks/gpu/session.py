"""What the measurements of on_gpu.py share: their form, compiled calls, and times in turns."""

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch is in the same process
if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & os.environ.keys():
    os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.92"  # as in a run

import jax
import jax.numpy as jnp

from benchmarks.gpu.tables import Row
from big_align.parallel.devices import choices

TURN_SECONDS = 0.1
"""About the time of a call's turn, so that starting and waiting do not count much."""


@dataclasses.dataclass
class Session:
    """What a measurement is given.

    Attributes:
      tiny: whether sizes are as small as a test needs.
      rates: FLOP/s of large products by type, and bytes/s of a copy: the bounds.
      profile: folder for a trace of three calls; None for none.
    """

    tiny: bool
    rates: dict[str, float]
    profile: str | None = None

    def bound(self, flops: float, moved: float, dtype: str = "bfloat16") -> float | None:
        """Returns the least seconds at the measured rates, None where they are not measured."""
        if not {dtype, "copy"} <= self.rates.keys():
            return None
        return max(flops / self.rates[dtype], moved / self.rates["copy"])


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A part of the benchmark that is done or left out as a whole.

    Attributes:
      name: its name on the command line and in the file.
      cost: seconds that it takes on a GPU, with compilation, at a guess.
      run: does it, and returns its rows.
      apart: whether it needs the memory of the whole device, and so a process of its own.
    """

    name: str
    cost: float
    run: Callable[[Session], list[Row]]
    apart: bool = False


@dataclasses.dataclass(frozen=True)
class Call:
    """Something to be timed.

    Attributes:
      start: begins one execution, and returns what `wait` takes.
      wait: waits for the end of it.
      facts: what is known of it besides its time.
      text: returns the compiled program, if it is one of XLA's.
    """

    start: Callable[[], Any]
    wait: Callable[[Any], Any]
    facts: Row = dataclasses.field(default_factory=dict)
    text: Callable[[], str] | None = None


def compile_call(function: Callable[..., Any], *arrays: Any) -> Call:
    """Compiles a function of some arrays; its facts are seconds, memory, and what was chosen."""
    begin = time.perf_counter()
    with choices.collect() as chosen:
        lowered = jax.jit(function).lower(*arrays)
    compiled = lowered.compile()
    facts = {"compile_s": time.perf_counter() - begin, "mib": extra_bytes(compiled) / 2**20}
    if chosen:
        facts["chosen"] = list(chosen)
    return Call(lambda: compiled(*arrays), jax.block_until_ready, facts, compiled.as_text)


def extra_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns what a program needs besides its arguments: temporaries and results."""
    stats = compiled.memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


def make_calls(makers: dict[str, Callable[[], Call]]) -> tuple[dict[str, Call], list[Row]]:
    """Makes calls by name; those that fail become rows that say why."""
    calls, failed = {}, []
    for name, make in makers.items():
        try:
            call = make()
            call.wait(call.start())
            calls[name] = call
            print(f"  {name}: compiled in {call.facts.get('compile_s', 0):.1f} s", flush=True)
        except Exception as error:  # one way that fails must not hide the others
            failed.append({"what": name, "failed": explain(error)})
    return calls, failed


def explain(error: Exception) -> str:
    """Returns the kind of an error and the beginning of its message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def time_in_turns(
    session: Session, calls: dict[str, Call], rounds: int, turn: float
) -> dict[str, float]:
    """Returns the median seconds of each call over rounds in which they take turns.

    Args:
      session: whether it is a test.
      calls: what is timed, by name.
      rounds: turns of each.
      turn: seconds of a turn, which is several executions of a short call.
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
    """Times calls in turns, and traces the first if asked to.

    Args:
      session: sizes, rates and whether to trace.
      makers: what makes each call, by name, the most important first.
      bound: the least seconds of any.
      reference: the name of the one with which the others are compared.
      rounds: turns of each.
      turn: seconds of a turn.
    """
    calls, rows = make_calls(makers)
    if session.profile and calls:
        from benchmarks.gpu.traces import trace_calls

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
