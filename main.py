"""Trains or evaluates: python main.py --config=configs/NAME.py[:argument] --workdir=DIR.

Any field of the config is changed by --config.field=value. See README.md.
"""

from absl import flags

from big_align.distributed import processes
from big_align.errors import UserError
from big_align.runs import command_line

MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (or continue), or evaluate.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join the other processes; JAX finds them (Slurm, TPU pods), or launch/."
)
PROFILE = flags.DEFINE_string(
    "profile", None, "Trace these steps of training, FIRST:LAST, into WORKDIR/profile."
)


def main() -> None:
    """Runs one mode."""
    if DISTRIBUTED.value:
        processes.join_processes()
    from big_align.distributed import agreement
    from big_align.runs import evaluate, train
    from big_align.training import profiling

    config, workdir = command_line.CONFIG.value, command_line.WORKDIR.value
    steps = profiling.parse_steps(PROFILE.value) if PROFILE.value else None
    agreement.check_start(config)
    if MODE.value == "eval":
        if steps:
            raise UserError("--profile traces steps of training; --mode=eval has none")
        evaluate.run(config, workdir)
    else:
        train.run(config, workdir, steps)


if __name__ == "__main__":
    command_line.run(main)
