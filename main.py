"""Trains or evaluates: python main.py --config=configs/NAME.py[:argument] --workdir=DIR.

Any field of the config is changed by --config.field=value. See README.md.
"""

from absl import flags

from big_align import command_line, processes

MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (or continue), or evaluate.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join the other processes; JAX finds them (Slurm, TPU pods), or launch/."
)


def main() -> None:
    """Runs one mode."""
    if DISTRIBUTED.value:
        processes.join_processes()
    from big_align import evaluate, train

    run = {"train": train.run, "eval": evaluate.run}[MODE.value]
    run(command_line.CONFIG.value, command_line.WORKDIR.value)


if __name__ == "__main__":
    command_line.run(main)
