"""Runs main.py with many command lines, each in a fork of a process that has imported it once.

A mistake is told in a moment; importing the program before takes seconds.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Outcome(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def run_mains(
    commands: Sequence[Sequence[str]], folder: pathlib.Path, environment: dict[str, str]
) -> list[Outcome]:
    """Runs main.py with each list of arguments, one after the other."""
    subprocess.run(
        [sys.executable, "-m", "tests.forked_mains", str(folder)],
        input=json.dumps([list(command) for command in commands]),
        cwd=ROOT, env=environment, text=True, check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    statuses = json.loads((folder / "statuses.json").read_text())
    return [
        Outcome(status, *((folder / f"{number}.{end}").read_text() for end in ("out", "err")))
        for number, status in enumerate(statuses)
    ]


def _run_child(arguments: list[str], stem: pathlib.Path) -> None:
    for descriptor, end in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{stem}.{end}", os.O_CREAT | os.O_WRONLY), descriptor)
    sys.argv = ["main.py", *arguments]
    status = 0
    try:
        runpy.run_path("main.py", run_name="__main__")
    except SystemExit as ended:  # what the interpreter does with it
        status = ended.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    commands = json.loads(sys.stdin.read())
    import big_align.runs.evaluate
    import big_align.runs.train  # noqa: F401

    statuses = []
    for number, arguments in enumerate(commands):
        pid = os.fork()
        if not pid:
            _run_child(arguments, folder / str(number))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    (folder / "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main()
