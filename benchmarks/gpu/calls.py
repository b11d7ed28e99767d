"""Calls that on_gpu.py times: compiled programs, and those of other libraries."""

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch is in the same process
if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & os.environ.keys():
    os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.92"  # as in a run

import jax

from benchmarks.gpu.tables import Row
from big_align.parallel.devices import choices


@dataclasses.dataclass(frozen=True)
class Call:
    """Something to be timed."""

    start: Callable[[], Any]  # begins one execution, and returns what `wait` takes
    wait: Callable[[Any], Any]
    facts: Row = dataclasses.field(default_factory=dict)  # what is known besides the time
    text: Callable[[], str] | None = None  # returns the compiled program, if it is one of XLA's


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
