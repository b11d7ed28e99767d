"""Paths of modules and parameters, as in "model/image/block_00", and patterns of them."""

import fnmatch
from collections.abc import Sequence


def split_path(path: str) -> tuple[str, ...]:
    """Returns the names in a path."""
    return tuple(path.strip("/").split("/"))


def fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether a path is at or below a pattern; * and ? match characters within a name."""
    return len(path) >= len(pattern) and all(map(fnmatch.fnmatchcase, path, pattern))
