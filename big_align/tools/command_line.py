"""Command lines of a run: a config file with overrides, a workdir, and one-line error messages.

main.py and the tools that work on a run share this module; each adds its own absl flags. There is
one set of them in a process, so that they are defined when a command runs, and never by an import.
"""

import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# TensorFlow, which only some tokenizers and sources use, starts with a page of messages, and logs
# the lack of a GPU as an error. Real failures are exceptions anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging
from ml_collections import ConfigDict

from big_align.config.config_files import CONFIG_JSON, list_packaged
from big_align.config.defaults import complete_config
from big_align.config.help_text import WIDTH, format_fields, format_lines
from big_align.config.home_folder import expand_home
from big_align.config.overrides import load_changed, load_config, refuse_words, split_changes
from big_align.config.program_name import own_words, spell
from big_align.core import library_messages
from big_align.core.errors import WRONG_USAGE, Stopped, UserError, WrongValue, find_status
from big_align.pages.run_report.starts import compare_configs, find_folder
from big_align.parallel.devices.chips import GPU_FRACTION
from big_align.parallel.distributed import processes

GPU_MEMORY = {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"}
"""Variables for the share of a GPU's memory that JAX takes, of which one may be set."""
HELP = {"--help", "-help", "-h", "-?"}


class Given(NamedTuple):
    """The config that the command line of this process gives."""

    config: ConfigDict
    changes: dict[str, str]  # as `split_changes` returns them
    path: str  # of the config, as it was given
    workdir: str


_given: list[Given] = []  # what `run` has parsed


def given_config() -> ConfigDict:
    """Returns the config of the command line, which `run` has parsed."""
    return _given[-1].config


def given_workdir() -> str:
    """Returns the workdir of the command line, which `run` has parsed."""
    return _given[-1].workdir


def describe_command() -> dict[str, Any]:
    """Returns the command that started this process, and its changes to the config file."""
    config, _, path, _ = _given[-1]
    changes = compare_configs(load_config(path).to_dict(), config.to_dict())
    return {"command": shlex.join(own_words()), "config": path, "changes": changes}


def run(main: Callable[[], None]) -> None:
    """Parses the command line and calls `main`; prints an error that the user can fix as one line.

    The exit status is 0 after `main` has finished, 2 if the command line or a value of the config
    is wrong, 1 after another error, and that of `Stopped` after a request to stop.
    """
    if not GPU_MEMORY & os.environ.keys():  # JAX takes three quarters of a GPU, if it is not told
        os.environ["XLA_CLIENT_MEM_FRACTION"] = str(GPU_FRACTION)
    define_flags()
    app.run(lambda _: _report_errors(main), flags_parser=_parse_argv)


def define_flags() -> None:
    """Defines the flags that all commands of a run have."""
    flags.DEFINE_string(
        "config",
        None,
        "A config file, the name of a packaged one, or WORKDIR/config.json; by default the "
        "workdir's.",
    )
    flags.DEFINE_string("workdir", None, "Where metrics, events and checkpoints lie.")
    flags.DEFINE_string(
        "checkpoint",
        None,
        "The checkpoint to evaluate or show: its step, or best (default: newest).",
    )


def _report_errors(main: Callable[[], None]) -> None:
    logging.set_verbosity(logging.WARNING)
    library_messages.shorten()
    try:
        main()
    except (UserError, OSError) as error:  # a full disk, a folder without permission
        logging.flush()
        processes.fail(error)
        nameless = isinstance(error, OSError) and error.errno and error.filename is None
        where = f" (--workdir={given_workdir()})" if nameless else ""
        folder = _tell_folder(str(error), _given[-1].path, given_workdir())
        print(f"error: {error}{where}{folder}", file=sys.stderr)
        sys.exit(find_status(error))
    except Stopped as stop:
        import jax

        if jax.process_index() == 0:
            print(stop)
        sys.exit(Stopped.STATUS)
    except KeyboardInterrupt as error:
        processes.fail(error)
        sys.exit(128 + signal.SIGINT)


def _tell_folder(message: str, config: str, workdir: str) -> str:
    """Tells, of a file that is not there, from where the paths of a workdir's config are."""
    missing = "no file" in message or "no such file" in message or "cannot be read" in message
    folder = find_folder(workdir) if missing and config.endswith(CONFIG_JSON) else ""
    if not folder or os.path.realpath(folder) == os.path.realpath(os.getcwd()):
        return ""
    return f"; {workdir} was started in {folder}: relative paths of its config are from there"


def evaluated_config() -> ConfigDict:
    """Returns the config of the command line, for evaluating or showing what was trained.

    The config that a run has left is used with the devices of this machine, whatever the run used,
    unless the command line sets a field of the mesh.
    """
    config, changes, path, _ = _given[-1]
    said = any(place.partition(".")[0] == "mesh" for place in changes)
    if path.endswith(".json") and not said:
        with config.unlocked():
            config.mesh = {}
            complete_config(config)
    return config


def chosen_checkpoint() -> int | str | None:
    """Returns the step that --checkpoint names, or "best"; None for the newest."""
    given = flags.FLAGS.checkpoint
    if given in (None, "best"):
        return given
    if not given.isdecimal():
        raise WrongValue(f"--checkpoint={given} is neither the step of a checkpoint nor best")
    return int(given)


def _parse_argv(argv: list[str]) -> list[str]:
    try:
        if HELP.intersection(argv):
            print(_write_help([word for word in argv if word not in HELP]))
            sys.exit(0)
        _parse(argv)
        workdir = given_workdir()
        if not workdir:
            raise ValueError("--workdir is missing: it names the folder of the run")
        if "://" in workdir:
            raise ValueError(
                f"--workdir={workdir} is an address, and a workdir is a local folder; its "
                "checkpoints may be in a bucket: --config.checkpoint.folder=gs://..."
            )
        return argv[:1]
    except (ValueError, flags.Error) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def _write_help(argv: list[str]) -> str:
    """Writes a description of the program, its flags, and the fields of the given config."""
    texts = [spell(sys.modules["__main__"].__doc__ or "").strip(), "Flags:"]
    rows = []
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.startswith("big_align.") or module == sys.argv[0]:
            rows += [_describe_flag(flag) for flag in defined]
    texts[-1] += "\n" + format_lines(sorted(rows))
    try:
        _parse(argv)
        texts += [f"Fields of {_given[-1].path}:", format_fields(given_config())]
    except UserError:
        if flags.FLAGS.config:
            raise
        known = f"With --config=NAME its fields are listed here: {', '.join(list_packaged())}."
        texts.append(textwrap.fill(known, WIDTH))
    return "\n\n".join(texts)


def _describe_flag(flag: flags.Flag) -> tuple[str, str]:
    """Returns a flag with its possible values, and its description."""
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else flag.default or flag.name.upper()
    written = f"--{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    return written, flag.help.rpartition(">: ")[2]  # absl puts the choices first


def _parse(argv: Sequence[str]) -> None:
    """Parses a command line, and loads its config."""
    words = flags.FLAGS.read_flags_from_files(expand_home(argv), force_gnu=False)
    changes, others = split_changes(words)
    refuse_words(flags.FLAGS(others)[1:])
    workdir = flags.FLAGS.workdir
    path = _find_config(flags.FLAGS.config, workdir)
    _given.append(Given(load_changed(path, changes), changes, path, workdir))


def _find_config(given: str | None, workdir: str | None) -> str:
    """Returns the config that is given, or that of the workdir."""
    if given:
        return given
    known = f"one of the packaged: {', '.join(list_packaged())}"
    if not workdir:
        raise UserError(f"--config is missing: it names a config file, or {known}")
    path = os.path.join(workdir, CONFIG_JSON)
    if not os.path.isfile(path):
        raise UserError(
            f"--workdir={workdir} has no {CONFIG_JSON} to go by: give --config as well, a file or "
            f"{known}"
        )
    return path
