"""The ~ in the words of a command line."""

import os
import re
from collections.abc import Iterable


def expand_home(words: Iterable[str]) -> list[str]:
    """Replaces the ~ of --flag=~/path by the home folder, which shells do only before a path."""
    matches = [(re.fullmatch(r"(--?[\w.]+=)(~(?:/.*)?)", word, re.DOTALL), word) for word in words]
    return [found[1] + os.path.expanduser(found[2]) if found else word for found, word in matches]
