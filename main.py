"""Trains or evaluates: python main.py --config=configs/NAME.py[:argument] --workdir=DIR.

Any field of the config is changed by --config.field=value. See README.md.
"""

import os
import re
import sys

# TensorFlow, which only some tokenizers and sources use, greets with a page; its errors still show.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags, logging
from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Where metrics, events and checkpoints lie.")
MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (or continue), or evaluate.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Join the other processes; JAX finds them (Slurm, TPU pods, launch/)."
)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses the command line; a mistake is one line that names the flag."""
    try:
        return flags.FLAGS(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        words = re.findall(r"\w+", text)
        if isinstance(error, AttributeError) and words:
            named = [a for a in argv if words[0] in a.split("=")[0].split(".")]
            near = re.search(r"Did you mean .(\w+)", text)
            text = f"{(named or words)[0]}: the config has no field {words[0]!r}" + (
                f"; did you mean {near[1]!r}?" if near else ""
            )
        sys.exit(f"error: {text}")


def main(argv: list[str]) -> None:
    """Runs one mode; an error that the user can mend is one line."""
    if len(argv) > 1:
        sys.exit(f"error: unexpected arguments {argv[1:]}; flags are written --name=value")
    logging.set_verbosity(logging.WARNING)
    # Orbax warns of its own defaults at every start; its errors are exceptions anyway.
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    import jax

    if DISTRIBUTED.value:
        jax.distributed.initialize()
    from big_align import evaluate, train
    from big_align.errors import UserError

    try:
        {"train": train.run, "eval": evaluate.run}[MODE.value](CONFIG.value, WORKDIR.value)
    except (UserError, FileNotFoundError) as error:
        logging.flush()
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main, flags_parser=parse_flags)
