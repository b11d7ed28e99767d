"""The tiny config, in which process 1 does something wrong at a step."""

import os
import pathlib
import signal
import sys

from big_align.training.logs import metrics
from tests import tiny_config

PROCESS, STEP = "1", 8


def get_config(fault: str):
    """Returns the config; process 1 meets the fault as it takes the batch of a step.

    It leaves a file `fault` in the workdir just before.

    Args:
      fault: `fail`, or the name of a signal.
    """
    take, taken = metrics.Progress.wait_for, []

    def take_or_fail(progress, batches):
        taken.append(None)
        if len(taken) == STEP:
            (workdir,) = (x for x in sys.argv if x.startswith("--workdir="))
            (pathlib.Path(workdir.partition("=")[2]) / "fault").touch()
            if fault == "fail":
                raise RuntimeError("injected")
            os.kill(os.getpid(), signal.Signals[fault])
        return take(progress, batches)

    if os.environ.get("JAX_PROCESS_ID") == PROCESS:
        metrics.Progress.wait_for = take_or_fail
    return tiny_config.get_config()
