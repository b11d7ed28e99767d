"""Several processes of one run: how they find each other."""

import os

from big_align.errors import UserError


def join_processes() -> None:
    """Joins the other processes of the run.

    JAX finds them on Slurm, TPU pods and Open MPI, and reads JAX_COORDINATOR_ADDRESS itself;
    elsewhere JAX_NUM_PROCESSES and JAX_PROCESS_ID say how many there are and which this is.

    Raises:
      UserError: they cannot be found.
    """
    import jax

    given = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
    try:
        numbers = {k: int(os.environ[name]) for k, name in given.items() if name in os.environ}
        jax.distributed.initialize(**numbers)
    except ValueError as error:
        raise UserError(
            f"--distributed: {error} See launch/ for how to start several processes."
        ) from error
