"""Several processes of one run: how they find each other, and how they fail together."""

import atexit
import os
import re
import resource
import socket
import sys
import threading
import traceback
from typing import Any

from big_align.core.errors import UserError, find_status
from big_align.parallel.distributed import activity, stop_requests
from big_align.parallel.distributed.variables import read_number

JOIN_SECONDS = 300  # for all to start: hosts and images arrive one by one

LOST = re.compile("Gloo|NCCL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED")
"""Found in errors that a process gets when it has lost another one."""

OMPI_SIZE = "OMPI_COMM_WORLD_SIZE"  # the number of processes, in every version of Open MPI

_watch: Any = None  # the `failures.Watch` of a process that has joined others


def join_processes(takes_requests: bool = False) -> None:
    """Joins the other processes of the run; from here on they fail together.

    JAX finds them on Slurm, TPU pods and Open MPI 4, and reads JAX_COORDINATOR_ADDRESS itself;
    elsewhere JAX_NUM_PROCESSES and JAX_PROCESS_ID give their number and that of this process, or
    the variables of Open MPI 5 do.

    A program that takes requests stops on SIGTERM by itself, as training does, which saves first;
    any other is ended by it at once, with all processes, and so are all by SIGINT.
    """
    global _watch
    import jax

    numbers: dict[str, Any] = _read_numbers()
    # This service makes JAX catch SIGTERM and wait for the program to ask whether there was one.
    jax.config.update("jax_enable_preemption_service", takes_requests)
    # When its own timeout expires, JAX ends the process with a page of C++.
    impatience = threading.Timer(JOIN_SECONDS, _give_up)
    impatience.daemon = True
    impatience.start()
    try:
        timeout = JOIN_SECONDS + 60
        # Before JAX takes SIGTERM, if it does; a command that is not the program has not begun so.
        stop_requests.answer_with(stop_requests.leave)
        jax.distributed.initialize(**numbers, initialization_timeout=timeout)
    except ValueError as error:
        raise UserError(
            f"--distributed: {error} See launch/ for how to start several processes."
        ) from error
    finally:
        impatience.cancel()
    state = coordination()
    if state.num_processes > 1:
        # JAX mostly ends a process that has lost process 0 by abort(): core files are no help.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        from big_align.parallel.distributed.failures import Watch

        _watch = Watch(state.client, state.process_id, state.num_processes)
        _watch.start()
        sys.excepthook = lambda _, error, __: fail(error)
        stop_requests.answer_with(_watch.stop)
        atexit.register(_watch.finish)  # runs before JAX's, which shuts the store down
        _check_own_name()


def check_alone(
    advice: str = "add --distributed, or --nodistributed for {number} runs of their own",
) -> None:
    """Refuses to go on if a process that joins no others was started as one of several."""
    # A batch script of Slurm has SLURM_NTASKS too; the variable of a step is set for its tasks.
    for name in ("JAX_NUM_PROCESSES", OMPI_SIZE, "SLURM_STEP_NUM_TASKS"):
        number = os.environ.get(name, "")
        if number.isdecimal() and int(number) > 1:
            raise UserError(
                f"{number} processes were started ({name}={number}): {advice.format(number=number)}"
            )


def coordination() -> Any:
    """Returns the state with `client`, `process_id` and `num_processes`, which JAX does not export.

    The client is None without `join_processes`; otherwise it is also a key-value store. JAX has no
    public one, and its public collectives would wait for a process that has failed.
    """
    from jax._src import distributed

    return distributed.global_state


def activities() -> dict[int, dict[str, Any]]:
    """Returns in process 0 what every process is doing, see `failures.Watch.activities`."""
    return _watch.activities() if _watch else {0: activity.describe() | {"silent": 0}}


def fail(error: BaseException) -> None:
    """Exits with all other processes, which get the reason; returns if there are none."""
    if _watch is None:
        return
    import jax

    if isinstance(error, UserError | FileNotFoundError | KeyboardInterrupt):
        text = str(error) or "interrupted"
        _watch.fail(f"error: {text}", " ".join(text.split()), status=find_status(error))
    text = "".join(traceback.format_exception(error))
    # If a process is lost, the collectives of the others fail, unless they hang.
    lost = isinstance(error, jax.errors.JaxRuntimeError | ValueError) and LOST.search(str(error))
    first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
    _watch.fail(text, first_line, is_consequence=bool(lost))


def _check_own_name() -> None:
    """Checks that this host's name is known where JAX's CPU devices are to find each other by it.

    JAX makes CPU devices beside those of an accelerator, unless $JAX_PLATFORMS leaves them out.
    """
    import jax

    config: Any = jax.config  # JAX adds its flags, which types do not know
    used = "cpu" in (config.jax_platforms or "cpu")
    name = socket.gethostname()
    if used and config.jax_cpu_collectives_implementation == "gloo" and not _resolves(name):
        raise UserError(
            f"the name of this host, {name}, does not resolve, and processes exchange data by it: "
            "add it to /etc/hosts"
        )


def _resolves(host: str) -> bool:
    """Returns whether the system knows an address for the name of a host."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _read_numbers() -> dict[str, int]:
    """Returns what the environment says of this process and JAX does not read by itself."""
    names = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
    found = {k: read_number(name, least=int(k == "num_processes")) for k, name in names.items()}
    given = {k: number for k, number in found.items() if number is not None}
    # JAX knows Open MPI by the address of mpirun, which version 5 does not pass on.
    if given or OMPI_SIZE not in os.environ or "OMPI_MCA_orte_hnp_uri" in os.environ:
        return given
    if "JAX_COORDINATOR_ADDRESS" not in os.environ:
        raise UserError(
            "--distributed: mpirun of Open MPI 5 needs -x JAX_COORDINATOR_ADDRESS=HOST:PORT"
        )
    names = {"num_processes": OMPI_SIZE, "process_id": "OMPI_COMM_WORLD_RANK"}
    if "JAX_LOCAL_DEVICE_IDS" not in os.environ:  # a process takes the GPU of its local rank
        names["local_device_ids"] = "OMPI_COMM_WORLD_LOCAL_RANK"
    return {k: int(os.environ[name]) for k, name in names.items()}


def _give_up() -> None:
    state = coordination()
    advice = "see that each was started and reaches this address"
    if not _resolves(state.coordinator_address.rpartition(":")[0].strip("[]")):
        advice = "the name of that host does not resolve here"
    print(
        f"error: process {state.process_id} has waited {JOIN_SECONDS} s for all the others at "
        f"{state.coordinator_address}: {advice}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
