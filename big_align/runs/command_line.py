"""Command lines of a run: a config file with overrides, a workdir, and one-line error messages.

main.py and the tools that work on a run share this module; each adds its own absl flags.
"""

import os
import re
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable
from typing import Any

# TensorFlow, which only some tokenizers and sources use, starts with a page of messages, and logs
# the lack of a GPU as an error. Real failures are exceptions anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from big_align import library_messages
from big_align.configuration.config_files import CONFIG_JSON, list_packaged
from big_align.configuration.defaults import complete_config
from big_align.configuration.help_text import WIDTH, format_fields, format_lines
from big_align.configuration.home_folder import expand_home
from big_align.configuration.overrides import ConfigParser, read_overrides
from big_align.devices.chips import GPU_FRACTION
from big_align.distributed import processes
from big_align.errors import Stopped, UserError, suggest
from big_align.reports.starts import compare_configs, find_folder

WRONG_USAGE = 2
"""The exit status that tells launchers that starting again is of no use."""
GPU_MEMORY = {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"}
"""Variables for the share of a GPU's memory that JAX takes, of which one may be set."""
HELP = {"--help", "-help", "-h", "-?"}
CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "A config file, the name of a packaged one, or WORKDIR/config.json; by default the workdir's.",
    lock_config=True,
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where metrics, events and checkpoints lie.")

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "The checkpoint to evaluate or show: its step, or best (default: newest)."
)


def load_config(path: str, *overrides: str) -> ConfigDict:
    """Loads a config like a command line does, for a notebook.

    Args:
      path: as in `configs/NAME.py`, `NAME:argument` or `WORKDIR/config.json`.
      overrides: as in `--config.batch_size=8`.

    Raises:
      UserError: there is no such file, or an override does not fit; the message is one line.
    """
    argv = expand_home(["", f"--config={path}", *overrides])
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file(
        "config", lock_config=True, flag_values=values, sys_argv=argv
    )
    _parse(values, holder, argv)
    return holder.value


def describe_command() -> dict[str, Any]:
    """Returns the command that started this process, and its changes to the config file."""
    path = flags.FLAGS["config"].config_filename
    changes = compare_configs(load_config(path).to_dict(), CONFIG.value.to_dict())
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return {"command": command, "config": path, "changes": changes}


def run(main: Callable[[], None]) -> None:
    """Parses the command line and calls `main`; prints an error that the user can fix as one line.

    The exit status is 0 after `main` has finished, 1 after an error, 2 if the command line is
    wrong, and that of `Stopped` after a request to stop.
    """
    if not GPU_MEMORY & os.environ.keys():  # JAX takes three quarters of a GPU, if it is not told
        os.environ["XLA_CLIENT_MEM_FRACTION"] = str(GPU_FRACTION)
    app.run(lambda _: _report_errors(main), flags_parser=_parse_argv)


def _report_errors(main: Callable[[], None]) -> None:
    logging.set_verbosity(logging.WARNING)
    library_messages.shorten()
    try:
        main()
    except (UserError, OSError) as error:  # a full disk, a folder without permission
        logging.flush()
        processes.fail(error)
        nameless = isinstance(error, OSError) and error.errno and error.filename is None
        where = f" (--workdir={WORKDIR.value})" if nameless else ""
        config = flags.FLAGS["config"].config_filename or ""
        sys.exit(f"error: {error}{where}{_tell_folder(str(error), config, WORKDIR.value)}")
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
    config = CONFIG.value
    said = any(path.partition(".")[0] == "mesh" for path in read_overrides(sys.argv))
    if flags.FLAGS["config"].config_filename.endswith(".json") and not said:
        with config.unlocked():
            config.mesh = {}
            complete_config(config)
    return config


def chosen_checkpoint() -> int | str | None:
    """Returns the step that --checkpoint names, or "best"; None for the newest.

    Raises:
      UserError: it is neither a step nor "best".
    """
    given = CHECKPOINT.value
    if given in (None, "best"):
        return given
    if not given.isdecimal():
        raise UserError(f"--checkpoint={given} is neither the step of a checkpoint nor best")
    return int(given)


def _parse_argv(argv: list[str]) -> list[str]:
    # ml_collections warns about a file without a config, which is an error here.
    logging.get_absl_logger().addFilter(lambda record: record.module != "config_flags")
    try:
        if HELP.intersection(argv):
            print(_write_help([word for word in argv if word not in HELP]))
            sys.exit(0)
        rest = _parse(flags.FLAGS, CONFIG, _find_workdir_config(expand_home(argv)))
        if not WORKDIR.value:
            raise ValueError("--workdir is missing: it names the folder of the run")
        if "://" in WORKDIR.value:
            raise ValueError(
                f"--workdir={WORKDIR.value} is an address, and a workdir is a local folder; its "
                "checkpoints may be in a bucket: --config.checkpoint.folder=gs://..."
            )
        return rest
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(WRONG_USAGE)


def _write_help(argv: list[str]) -> str:
    """Writes a description of the program, its flags, and the fields of the given config."""
    texts = [(sys.modules["__main__"].__doc__ or "").strip(), "Flags:"]
    rows = []
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.startswith("big_align.") or module == sys.argv[0]:
            rows += [_describe_flag(flag) for flag in defined]
    texts[-1] += "\n" + format_lines(sorted(rows))
    try:
        argv = _find_workdir_config(expand_home(argv))
    except UserError:
        known = f"With --config=NAME its fields are listed here: {', '.join(list_packaged())}."
        texts.append(textwrap.fill(known, WIDTH))
    else:
        _parse(flags.FLAGS, CONFIG, argv)
        texts.append(f"Fields of {flags.FLAGS['config'].config_filename}:")
        texts.append(format_fields(CONFIG.value))
    return "\n\n".join(texts)


def _describe_flag(flag: flags.Flag) -> tuple[str, str]:
    """Returns a flag with its possible values, and its description."""
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else flag.default or flag.name.upper()
    written = f"--{flag.name}" if flag.boolean else f"--{flag.name}={value}"
    return written, flag.help.rpartition(">: ")[2]  # absl puts the choices first


def _find_workdir_config(argv: list[str]) -> list[str]:
    """Adds the workdir's config to a command line that names no config.

    Raises:
      UserError: the workdir has no config, or there is no workdir.
    """
    words = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
    if any(re.fullmatch(r"--?config(=.*)?", word, re.DOTALL) for word in words):
        return argv
    given = re.search(r"(?:^|\0)--?workdir[=\0]([^\0]+)", "\0".join(words))
    path = os.path.join(given[1], CONFIG_JSON) if given else ""
    if not os.path.isfile(path):
        _check_flags(words[1:])
    if not given:
        raise UserError(
            "--config is missing: it names a config file, or one of the packaged: "
            f"{', '.join(list_packaged())}"
        )
    if not os.path.isfile(path):
        raise UserError(
            f"--workdir={given[1]} has no {CONFIG_JSON} to go by: give --config as well, a file or "
            f"one of the packaged: {', '.join(list_packaged())}"
        )
    return [argv[0], f"--config={path}", *argv[1:]]


def _check_flags(words: list[str]) -> None:
    """Raises a UserError for the first flag that does not exist."""
    for word in words:
        match = re.match(r"--?([a-zA-Z]\w*)", word)
        if match and not {match[1], match[1].removeprefix("no")} & set(flags.FLAGS):
            known = suggest(match[1], flags.FLAGS)
            raise UserError(f"{word}: there is no flag {match[1]!r}{known}; --help lists them")


def _parse(values: flags.FlagValues, config: flags.FlagHolder, argv: list[str]) -> list[str]:
    """Parses flags; any error becomes a one-line UserError that names the flag."""
    try:
        parser = values["config"].parser = ConfigParser(argv)
        rest = values(parser.argv)
        with config.value.unlocked():  # for components that a flag sets as a whole
            complete_config(config.value)
    except Exception as error:  # A config file is code: it may raise anything.
        raise UserError(_describe(error, argv)) from error
    if rest[1:]:
        raise UserError(f"unexpected arguments {rest[1:]}; flags are written --name=value")
    return rest


def _describe(error: Exception, argv: list[str]) -> str:
    """Returns one line that says what is wrong with a command line."""
    match = re.search(r"(?:^| )--?config[= ](\S+)", " ".join(argv))
    given, text = match[1] if match else "", str(error).strip()
    words = re.findall(r"\w+", text)
    if isinstance(error, (AttributeError, KeyError)) and words and "Traceback" not in text:
        named = [arg for arg in argv if words[0] in arg.split("=")[0].split(".")]
        near = re.search(r"Did you mean .(\w+)", text)
        return f"{(named or words)[0]}: the config has no field {words[0]!r}" + (
            f"; did you mean {near[1]!r}?" if near else ""
        )
    if "Traceback" in text:  # ml_collections includes the traceback of what get_config raised
        return f"--config={given}: {text.splitlines()[-1]}"
    if wrong := _find_cause(error):
        return str(wrong)
    if isinstance(error, flags.Error):
        return " ".join(text.split())
    return f"--config={given}: {type(error).__name__}: {' '.join(text.split())}"


def _find_cause(error: BaseException | None) -> UserError | None:
    """Returns the `UserError` that absl has wrapped into its own error, if there is one."""
    while error and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error
