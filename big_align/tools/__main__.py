"""The command `big-align`: it trains, evaluates, and runs the tools, as `-m big_align.tools` does.

What takes time is imported by the command that needs it: the list of commands does not wait for it.
"""

import os
import pkgutil
import re
import runpy
import signal
import sys

from big_align.core import huge_pages

TOOLS = os.path.dirname(__file__)
NO_TOOLS = ("__main__", "command", "command_line")
RUNS = {
    "train": "Trains a model by a CONFIG or on the pairs at a PATH, or continues a run.",
    "eval": "Evaluates what a run has trained.",
}
USAGE = "big-align COMMAND [--help] ..."
WRONG_USAGE = 2


def main() -> int:
    """Runs the command that the first word names; returns its exit status."""
    given, words = "".join(sys.argv[1:2]), sys.argv[2:]
    name = given.replace("-", "_")
    if name in RUNS:
        # As in main.py: both wait until there is somebody to answer them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        return _run(name, words)
    if name in list_tools():
        huge_pages.restart()
        sys.argv = [given, *words]
        runpy.run_module(f"big_align.tools.{name}", run_name="__main__", alter_sys=True)
        return 0
    if given in ("", "-h", "--help", "help"):
        print(write_list())
        return 0
    if given == "--version":
        import big_align

        print(f"big_align {big_align.__version__}")
        return 0
    from big_align.core.errors import suggest

    near = suggest(name, [*RUNS, *list_tools()]) or "; big-align --help lists them"
    print(f"error: big-align has no command {given!r}{near}", file=sys.stderr)
    return WRONG_USAGE


def list_tools() -> list[str]:
    """Returns the names of the tools."""
    names = (module.name for module in pkgutil.iter_modules([TOOLS]))
    return [name for name in names if name not in NO_TOOLS]


def write_list() -> str:
    """Writes all commands with what they do: for a tool the first line of its docstring."""
    told = dict(RUNS)
    for name in list_tools():
        with open(os.path.join(TOOLS, f"{name}.py"), encoding="utf-8") as file:
            told[name] = file.readline().strip().strip('"')
    lines = [f"  {name:<{max(map(len, told))}}  {line}" for name, line in told.items()]
    return "\n".join([f"usage: {USAGE}", "", *lines, "", "big-align --version tells which it is."])


def _run(name: str, words: list[str]) -> int:
    """Trains or evaluates, as main.py does."""
    from big_align.parallel.distributed import stop_requests

    stop_requests.begin()  # before anything is imported that takes time
    from big_align.core.errors import UserError

    try:
        path = words and not words[0].startswith("-")
        words = read_path(name, words[0], words[1:]) if path else words
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_USAGE
    sys.argv = [name, *(["--mode=eval"] if name == "eval" else []), *words]
    runpy.run_module("big_align", run_name="__main__", alter_sys=True)
    return 0


def read_path(name: str, path: str, words: list[str]) -> list[str]:
    """Returns the flags that a word before other flags stands for.

    Args:
      name: of the command, "train" or "eval".
      path: a workdir, or to train on, pairs that `configs/own_pairs.py` reads, or else a config of
        the package, with its arguments.
      words: the flags that follow.

    Raises:
      UserError: there is a flag that says the same.
    """
    from big_align.config.config_files import CONFIG_JSON, list_packaged
    from big_align.core.errors import UserError

    def given(flag: str) -> bool:
        return any(re.match(f"--?{flag}(=|$)", word) for word in words)

    if name == "eval" or os.path.isfile(os.path.join(path, CONFIG_JSON)):
        if given("workdir"):
            raise UserError(f"big-align {name} {path}: the path is a workdir; leave --workdir out")
        return [f"--workdir={path}", *words]
    packaged = path.partition(":")[0] in list_packaged() and not os.path.exists(path)
    if given("config"):
        what = "a config" if packaged else "that of pairs for --config=own_pairs"
        raise UserError(f"big-align train {path}: the path is {what}; leave it or --config out")
    flags = [f"--config={path if packaged else f'own_pairs:{path}'}"]
    if not given("workdir"):
        own = re.sub(r"\W+", "_", path).strip("_") if packaged else name_pairs(path)
        print(f"workdir: workdirs/{own}")
        flags.append(f"--workdir=workdirs/{own}")
    return [*flags, *words]


def name_pairs(path: str) -> str:
    """Returns the name of a workdir for pairs: that of their folder or file, without wildcards."""
    path = path.partition(",")[0]  # what follows are other arguments of the config
    path = path if "://" in path else os.path.abspath(path)
    for part in reversed(path.split("/")):
        plain = re.split(r"[*?\[{]", part)[0]
        stem = os.path.splitext(plain)[0] if plain == part else plain
        if name := re.sub(r"\W+", "_", stem).strip("_"):
            return name
    return "own_pairs"


if __name__ == "__main__":
    sys.exit(main())
