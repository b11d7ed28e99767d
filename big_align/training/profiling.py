"""Traces of a few steps, for TensorBoard or XProf."""

import os
import re
from collections.abc import Callable
from typing import Any

import jax

from big_align.core.errors import WrongValue


def parse_steps(text: str) -> tuple[int, int]:
    """Reads which steps to trace: "FIRST:LAST", both inclusive."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise WrongValue(
            f"--profile={text} is not FIRST:LAST, two steps in their order, as in --profile=10:12"
        )
    return int(match[1]), int(match[2])


class Profiler:
    """Writes a trace of some steps of every process to `WORKDIR/profile`.

    A run that continues after the first of them traces nothing: it is the same command that traced
    them before.
    """

    def __init__(self, workdir: str, steps: tuple[int, int] | None, done: int, total: int):
        self.folder = os.path.join(workdir, "profile")
        self._first, self._last = steps or (0, 0)
        self._tracing = False
        if self._last > total:
            raise WrongValue(f"--profile={self._first}:{self._last}: the last step is {total}")
        if steps and self._first <= done and jax.process_index() == 0:
            print(
                f"--profile={self._first}:{self._last}: nothing is traced, since the run continues "
                f"after step {done}"
            )

    def run_step(self, step: int, function: Callable, *arguments: Any) -> Any:
        """Calls a step, traced if it is one of those wanted; waits for the last of them."""
        if step == self._first:
            jax.profiler.start_trace(self.folder)
            self._tracing = True
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            result = function(*arguments)
        if step == self._last and self._tracing:
            jax.block_until_ready(result)
            self.close()
        return result

    def close(self) -> None:
        """Ends the trace if it is still running."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()
