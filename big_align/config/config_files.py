"""Config files: Python, packaged or written by users, and the `config.json` that a run leaves."""

import json
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from big_align import configs
from big_align.config.fields import OWN
from big_align.config.places import GROUPS
from big_align.config.stages import FIRST
from big_align.core import formats
from big_align.core.errors import UserError, put_in_a_line, suggest
from big_align.data.json_texts import read_json

CONFIG_JSON = "config.json"  # the file in a workdir that holds the config of the run
KIND = "workdir"  # in `formats`
PACKAGED = pathlib.Path(configs.__path__[0])
FIELDS = {*(path.partition(".")[0] for path in OWN), *GROUPS} | {
    *("data", "tokenizer", "objective", "evaluators", "init", FIRST)
}
"""The fields of a whole config."""


def list_packaged() -> list[str]:
    """Returns the names of the configs that are installed with the package, except their bases."""
    files = sorted(PACKAGED.glob("*.py"))
    return [file.stem for file in files if "def get_config(" in file.read_text(encoding="utf-8")]


def find_config(given: str) -> str:
    """Returns the file that a `--config` refers to, with the argument after its colon.

    It is as in `configs/NAME.py`, `NAME:argument` or `WORKDIR/config.json`. If there is no such
    file, `NAME`, `NAME.py` and `configs/NAME.py` refer to the packaged config with that name.
    """
    if given.endswith(".json") and os.path.isfile(given):
        return given
    path, colon, argument = given.partition(":")
    if os.path.isfile(path):
        return given
    name, packaged = pathlib.PurePath(path), list_packaged()
    plain = str(name.parent) in (".", "configs") and name.suffix in ("", ".py")
    if plain and name.stem in packaged:
        return f"{PACKAGED / name.stem}.py{colon}{argument}"
    if os.path.isfile(os.path.join(path, CONFIG_JSON)):
        raise UserError(f"--config={given} is a folder; write --config={path}/{CONFIG_JSON}")
    near = suggest(name.stem, packaged)
    known = "" if near else f"; packaged are: {', '.join(packaged)}"
    raise UserError(f"--config={given}: there is no file {path}{near}{known}")


def _check_names(node: Any, where: str) -> None:
    """Raises a UserError for a field that no config can have."""
    if isinstance(node, tuple):
        for each in node:
            _check_names(each, where)
    for name, value in node.items() if isinstance(node, dict) else ():
        if "." in name or name.startswith("__") or not name.isprintable():
            raise UserError(
                f"{where} has a field {put_in_a_line(repr(name))}; names of fields are printable, "
                "have no dots, and do not begin with __"
            )
        _check_names(value, f"{where}: {put_in_a_line(name)}")


def read_config(path: str | os.PathLike) -> ConfigDict:
    """Reads the `config.json` of a workdir, as the config that was written there."""
    read = make_tuples(read_json(os.fspath(path)))
    if isinstance(read, dict):
        formats.check(KIND, read, path)
        read = formats.strip(read)
    if missing := sorted(FIELDS.difference(read if isinstance(read, dict) else ())):
        raise UserError(f"{path} lacks {', '.join(missing)}; it is not as it was written")
    _check_names(read, str(path))
    return ConfigDict(read)


def format_config(config: ConfigDict) -> str:
    """Returns the text of a `config.json`, as `read_config` reads it."""
    content = formats.stamp(KIND, json.loads(config.to_json_best_effort()))
    return json.dumps(content, indent=2) + "\n"


def make_tuples(node: Any) -> Any:
    """Turns the lists of JSON into the tuples that configs have."""
    if isinstance(node, dict):
        return {name: make_tuples(value) for name, value in node.items()}
    return tuple(map(make_tuples, node)) if isinstance(node, list) else node
