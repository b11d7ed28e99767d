"""Command lines of a run: a config file with overrides, a workdir, and mistakes told in one line.

main.py and the tools that work on a run share it; each adds its own absl flags.
"""

import os
import re
import signal
import sys
from collections.abc import Callable

# TensorFlow, which only some tokenizers and sources use, greets with a page, and calls it an error
# that a machine has no GPU. What really fails is an exception as well.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from big_align.distributed import processes
from big_align.errors import Stopped, UserError

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file.", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Where metrics, events and checkpoints lie.")


def load_config(path: str, *overrides: str) -> ConfigDict:
    """Loads a config as a command line would, for a notebook.

    Args:
      path: as in `configs/NAME.py` or `configs/NAME.py:argument`.
      overrides: as in `--config.batch_size=8`.

    Raises:
      ValueError: there is no such file, or an override does not fit; the message is one line.
    """
    argv = ["", f"--config={path}", *overrides]
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file(
        "config", lock_config=True, flag_values=values, sys_argv=argv
    )
    _parse(values, holder, argv)
    return holder.value


def run(main: Callable[[], None]) -> None:
    """Parses the command line and calls `main`; an error that the user can mend is one line.

    The exit status is 0 when `main` has finished, 1 after an error, and that of `Stopped` when it
    was told to stop.
    """
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(lambda _: _report_errors(main), flags_parser=_parse_argv)


def _report_errors(main: Callable[[], None]) -> None:
    logging.set_verbosity(logging.WARNING)
    # Orbax warns of its own defaults at every start; its errors are exceptions anyway.
    logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
    try:
        main()
    except (UserError, FileNotFoundError) as error:
        logging.flush()
        processes.fail(error)
        sys.exit(f"error: {error}")
    except Stopped as stop:
        import jax

        if jax.process_index() == 0:
            print(stop)
        sys.exit(Stopped.STATUS)
    except KeyboardInterrupt as error:
        processes.fail(error)
        sys.exit(128 + signal.SIGINT)


def _parse_argv(argv: list[str]) -> list[str]:
    try:
        return _parse(flags.FLAGS, CONFIG, argv)
    except ValueError as error:
        sys.exit(f"error: {error}")


def _parse(values: flags.FlagValues, config: flags.FlagHolder, argv: list[str]) -> list[str]:
    """Parses flags; whatever is wrong becomes a ValueError of one line that names the flag."""
    from big_align.runs.defaults import complete_config
    from big_align.runs.overrides import ConfigParser

    try:
        parser = values["config"].parser = ConfigParser(argv)
        rest = values(parser.argv)
        # A file that cannot be loaded is an object that raises on any access.
        getattr(config.value, "is_locked", None)
        if isinstance(config.value, ConfigDict):
            with config.value.unlocked():  # components that a flag sets as a whole
                complete_config(config.value)
    except Exception as error:  # A config file is code: it may raise anything.
        raise ValueError(_describe(error, argv)) from error
    if rest[1:]:
        raise ValueError(f"unexpected arguments {rest[1:]}; flags are written --name=value")
    return rest


def _describe(error: Exception, argv: list[str]) -> str:
    """Tells in one line what is wrong with a command line."""
    match = re.search(r"(?:^| )--?config[= ](\S+)", " ".join(argv))
    given, text = match[1] if match else "", str(error).strip()
    path = given.partition(":")[0]
    if path and not os.path.isfile(path):
        return f"--config={given}: there is no file {path}"
    words = re.findall(r"\w+", text)
    if isinstance(error, AttributeError) and words:
        named = [arg for arg in argv if words[0] in arg.split("=")[0].split(".")]
        near = re.search(r"Did you mean .(\w+)", text)
        return f"{(named or words)[0]}: the config has no field {words[0]!r}" + (
            f"; did you mean {near[1]!r}?" if near else ""
        )
    if "Traceback" in text:  # ml_collections passes on what get_config raised with its traceback.
        return f"--config={given}: {text.splitlines()[-1]}"
    if wrong := _find_cause(error):
        return str(wrong)
    if isinstance(error, flags.Error):
        return " ".join(text.split())
    return f"--config={given}: {type(error).__name__}: {' '.join(text.split())}"


def _find_cause(error: BaseException | None) -> UserError | None:
    """Returns the error that absl has wrapped into its own, if it tells what is wrong."""
    while error and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error
