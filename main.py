"""Trains or evaluates: python main.py --config=configs/NAME.py[:argument] --workdir=DIR.

Any field of the config is changed by --config.field=value. See README.md.
"""

import os
import sys

from absl import flags

from big_align import command_line

MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (or continue), or evaluate.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join the other processes; JAX finds them (Slurm, TPU pods), or launch/."
)


def join_processes() -> None:
    """Joins the other processes of the run.

    JAX finds them on Slurm, TPU pods and Open MPI, and reads JAX_COORDINATOR_ADDRESS itself;
    elsewhere JAX_NUM_PROCESSES and JAX_PROCESS_ID say how many there are and which this is.
    """
    import jax

    given = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
    try:
        numbers = {k: int(os.environ[name]) for k, name in given.items() if name in os.environ}
        jax.distributed.initialize(**numbers)
    except ValueError as error:
        sys.exit(f"error: --distributed: {error} See launch/ for how to start several processes.")


def main() -> None:
    """Runs one mode."""
    if DISTRIBUTED.value:
        join_processes()
    from big_align import evaluate, train

    run = {"train": train.run, "eval": evaluate.run}[MODE.value]
    run(command_line.CONFIG.value, command_line.WORKDIR.value)


if __name__ == "__main__":
    command_line.run(main)
