"""Errors that a user can mend; main.py prints them as one line, without a traceback.

`Stopped` is none, but it ends a run early as they do.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """What the user gave cannot be used; the message says what and what would be right."""


class ConfigError(UserError):
    """A config that cannot be built."""


class FieldError(UserError):
    """A component cannot work as it is set; one or several of its fields would mend it.

    Args:
      message: what is wrong, without a stop at the end.
      fields: what to set, or a word in capitals that stands for it, by field.
    """

    def __init__(self, message: str, **fields: Any):
        super().__init__(f"{message}; set {', '.join(f'{k}={v}' for k, v in fields.items())}")
        self.message, self.fields = message, fields


class CheckpointMismatch(UserError):
    """The checkpoints of a workdir belong to another model or another order of examples."""


class MissingCheckpoint(ConfigError, FileNotFoundError):
    """The workdir has no checkpoint to evaluate."""


class DamagedCheckpoint(UserError):
    """A checkpoint is not what was written, and there is none to take instead."""


class NotSavedError(UserError):
    """The state of a run could not be saved."""


class BrokenDataError(UserError):
    """More examples are broken than the config allows."""


class DivergedError(UserError):
    """The numbers of a run are a bad sign, and it cannot go on."""


class NotFiniteError(DivergedError):
    """The loss is NaN or infinite."""


class WeightsMismatch(UserError):
    """Weights do not fit the model that they are meant for."""


class WeightFileError(UserError):
    """A file of weights is missing, damaged, not what its name says, or cannot be written."""


class Stopped(Exception):
    """The run was told to stop and has saved; the same command continues it."""

    STATUS = 75
    """The exit status, EX_TEMPFAIL of sysexits.h: start the same command again."""


class Rewound(Exception):
    """The run has decided to go back to its last checkpoint, and to leave data out."""


LINE_MAX = 300  # characters of what a library, or a file, says


def put_in_a_line(text: str) -> str:
    """Returns a text in one line of bounded length that can be printed."""
    line = " ".join(text[: 4 * LINE_MAX].split())
    line = line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def tell_in_a_line(error: BaseException) -> str:
    """Returns what an exception says, in one line of bounded length, and its kind if it tells."""
    text, kind = put_in_a_line(str(error)), type(error).__name__
    return text if text and kind in ("ValueError", "OSError") else f"{kind}: {text}".rstrip(": ")


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " (did you mean ...?)" for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
