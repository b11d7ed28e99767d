"""Several processes of one run: how they find each other, and how they fail together."""

import atexit
import os
import re
import resource
import sys
import threading
import traceback
from typing import Any

from big_align.distributed import activity
from big_align.errors import UserError

JOIN_SECONDS = 300
"""How long processes wait for each other at the start: hosts and images arrive one by one."""

LOST = re.compile("Gloo|NCCL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED")
"""Found in errors that a process gets when it has lost another one."""

_watch: Any = None
"""The `failures.Watch` of a process that has joined others."""


def join_processes() -> None:
    """Joins the other processes of the run; from here on they fail together.

    JAX finds them on Slurm, TPU pods and Open MPI, and reads JAX_COORDINATOR_ADDRESS itself;
    elsewhere JAX_NUM_PROCESSES and JAX_PROCESS_ID give their number and that of this process.

    Raises:
      UserError: they cannot be found.
    """
    global _watch
    import jax

    given = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
    # When its own timeout expires, JAX ends the process with a page of C++.
    impatience = threading.Timer(JOIN_SECONDS, _give_up)
    impatience.daemon = True
    impatience.start()
    try:
        numbers = {k: int(os.environ[name]) for k, name in given.items() if name in os.environ}
        jax.distributed.initialize(**numbers, initialization_timeout=JOIN_SECONDS + 60)
    except ValueError as error:
        raise UserError(
            f"--distributed: {error} See launch/ for how to start several processes."
        ) from error
    finally:
        impatience.cancel()
    state = coordination()
    if state.num_processes > 1:
        # A process that loses process 0 is mostly ended by JAX with abort(): core files are no
        # help.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        from big_align.distributed.failures import Watch

        _watch = Watch(state.client, state.process_id, state.num_processes)
        _watch.start()
        sys.excepthook = lambda _, error, __: fail(error)
        atexit.register(_watch.finish)  # runs before JAX's, which shuts the store down


def coordination() -> Any:
    """Returns the state with `client`, `process_id` and `num_processes`, which JAX does not export.

    The client is None without `join_processes`; otherwise it is also a key-value store.
    """
    from jax._src import distributed

    return distributed.global_state


def activities() -> dict[int, dict[str, Any]]:
    """Returns in process 0 what every process is doing, see `failures.Watch.activities`."""
    return _watch.activities() if _watch else {0: activity.describe() | {"silent": 0}}


def fail(error: BaseException) -> None:
    """Exits together with the other processes, which all get the reason; returns if there are none.

    Uncaught exceptions arrive here automatically.

    Args:
      error: the error that ends this process.
    """
    if _watch is None:
        return
    import jax

    if isinstance(error, UserError | FileNotFoundError | KeyboardInterrupt):
        text = str(error) or "interrupted"
        _watch.fail(f"error: {text}", " ".join(text.split()))
    text = "".join(traceback.format_exception(error))
    # If a process is lost, the collectives of the others fail, unless they hang.
    lost = isinstance(error, jax.errors.JaxRuntimeError | ValueError) and LOST.search(str(error))
    first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
    _watch.fail(text, first_line, is_consequence=bool(lost))


def _give_up() -> None:
    state = coordination()
    print(
        f"error: process {state.process_id} has waited {JOIN_SECONDS} s for all the others at "
        f"{state.coordinator_address}: see that each was started and reaches this address",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
