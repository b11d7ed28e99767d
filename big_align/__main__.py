"""Trains or evaluates an image-text model.

  python -m big_align --config=NAME[:argument] --workdir=DIR        trains, or continues
  python -m big_align --workdir=DIR                                 continues
  python -m big_align --mode=eval --workdir=DIR                     evaluates

In a checkout `python main.py` does the same, and so do `big-align train` and `big-align eval`. To
these a word may be given first: `big-align train data/photos` trains on the pairs there,
`big-align train quickstart` by that config, and a workdir is continued or evaluated. NAME is a
packaged config, such as quickstart, or a config file. Any field is changed by
--config.FIELD=VALUE; --help --config=NAME lists all of them.
"""

from big_align.parallel.distributed import stop_requests

if __name__ == "__main__":
    stop_requests.begin()  # before the imports that take time

from absl import flags  # noqa: E402

from big_align.core.errors import WrongValue  # noqa: E402
from big_align.parallel.distributed import processes  # noqa: E402
from big_align.tools import command_line  # noqa: E402

MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (or continue), or evaluate.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", None, "Join the other processes; JAX finds them (Slurm, TPU pods), or launch/."
)
PROFILE = flags.DEFINE_string(
    "profile", None, "Trace these steps of training, FIRST:LAST, into WORKDIR/profile."
)


@flags.validator("distributed")
def _check_distributed(distributed: bool | None) -> bool:
    """Refuses to take one of several processes for a run of its own, unless told to."""
    if distributed is None:
        processes.check_alone()
    return True


def main() -> None:
    """Runs one mode."""
    evaluating = MODE.value == "eval"
    if DISTRIBUTED.value:
        processes.join_processes(takes_requests=not evaluating)
    from big_align.pages.run_report import report
    from big_align.parallel.distributed import agreement
    from big_align.runs import evaluate, train
    from big_align.training import profiling

    workdir = command_line.given_workdir()
    config = command_line.evaluated_config() if evaluating else command_line.given_config()
    steps = profiling.parse_steps(PROFILE.value) if PROFILE.value else None
    agreement.check_start(config)
    if evaluating:
        if steps:
            raise WrongValue("--profile traces steps of training; --mode=eval has none")
        evaluate.run(config, workdir, command_line.chosen_checkpoint())
    else:
        if command_line.chosen_checkpoint() is not None:
            raise WrongValue("--checkpoint is for --mode=eval; training goes on from the newest")
        train.run(config, workdir, steps, command_line.describe_command())
        report.print_uses(workdir)


if __name__ == "__main__":
    command_line.run(main)
