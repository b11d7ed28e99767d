"""What all commands share: the parser of their flags, and how they end."""

import argparse
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

from big_align.config.home_folder import expand_home
from big_align.config.program_name import spell
from big_align.core import library_messages, whole_files
from big_align.core.errors import Stopped, UserError, WrongValue, find_status
from big_align.parallel.distributed import processes


def split_names(text: str) -> list[str]:
    """Returns names that are separated by commas, and perhaps by spaces too."""
    return [name for name in map(str.strip, text.split(",")) if name]


def check_least(options: argparse.Namespace, **least: int) -> None:
    """Refuses numbers of flags that are below the least ones; a flag that is None has none."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise WrongValue(f"--{name}={value} must be at least {bound}")


class Parser(argparse.ArgumentParser):
    """A parser for which ~ after --flag= is the home folder, as it is for main.py."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words, those of the command line by default."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(expand_home(words), namespace)


def make_parser(name: str, doc: str | None, **settings: Any) -> argparse.ArgumentParser:
    """Returns a parser whose help begins with the docstring of the command's module."""
    return Parser(
        prog=spell(f"python -m big_align.tools.{name}"),
        description=doc and spell(doc),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **settings,
    )


def begin_processes(distributed: bool) -> None:
    """Joins the other processes, or refuses to be one of several without --distributed."""
    if distributed:
        processes.join_processes()
    else:
        processes.check_alone("add --distributed")


def local_path(text: str) -> pathlib.Path:
    """Reads a path to write to, which is local: pathlib would make a folder here of gs://..."""
    try:
        whole_files.check_local(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).partition("=")[2]) from error
    return pathlib.Path(text)


def folder_path(text: str) -> pathlib.Path | str:
    """Reads a path of a folder to write, local or an address."""
    return text if "://" in text else local_path(text)


def run(act: Callable[..., int | None], *arguments: Any) -> int:
    """Does what a command is for, and says in one line what has ended it early.

    Only what the user can change is such a line; anything else is a bug, and keeps its traceback.
    `act` imports what takes time, so that --help does not wait for it. The exit status is what it
    returns, or 0; 2 after a wrong value, 1 after another error, 130 after Ctrl-C, and that of
    `Stopped` after a request to stop.
    """
    # As in command_line: silence what libraries print at startup; real failures are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    library_messages.shorten()
    try:
        return act(*arguments) or 0
    except (UserError, OSError) as error:
        processes.fail(error)
        print(f"error: {error}", file=sys.stderr)
        return find_status(error)
    except KeyboardInterrupt as error:
        processes.fail(error)
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Stopped as stopped:
        print(stopped)
        return Stopped.STATUS
