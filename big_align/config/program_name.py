"""How this program was called, for what names its commands: `big-align`, or Python."""

import os
import re
import sys

NAME = "big-align"


def called_by_name() -> bool:
    """Returns whether this program is the command that the package installs."""
    return os.path.basename(" ".join(sys.orig_argv[1:2])) == NAME


def own_words() -> list[str]:
    """Returns the command line of this process, without the folders of programs."""
    words = sys.orig_argv[1:]
    return [NAME, *words[1:]] if called_by_name() else ["python", *words]


def spell(text: str) -> str:
    """Returns a text whose commands are written as this program was called."""
    if not called_by_name():
        return text
    text = text.replace("python -m big_align.tools.", f"{NAME} ")
    text = re.sub(r"python -m big_align --mode=eval\b", f"{NAME} eval", text)
    return re.sub(r"python -m big_align(?= )", f"{NAME} train", text)
