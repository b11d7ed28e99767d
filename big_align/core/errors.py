"""Errors that a user can fix; main.py prints them as one line, without a traceback.

`Stopped` is not an error, but ends a run early in the same way.
"""

import contextlib
import difflib
import functools
import inspect
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

WRONG_USAGE = 2
"""The exit status that tells launchers that starting again is of no use."""


class UserError(ValueError):
    """What the user gave cannot be used; the message says what, and what would be right.

    It is a ValueError, and `big_align.core.errors` has its kinds, such as `WeightsMismatch`. The
    commands print the message in one line, without a traceback.

    Examples:
      >>> import big_align
      >>> try:
      ...     big_align.load_config("quickstart", "--config.batchsize=64")
      ... except big_align.UserError as error:
      ...     print(str(error).partition("(")[2])
      did you mean --config.batch_size=...?)
    """

    is_wrong_value = False
    """Whether it is about a value as it was written, whatever lies on disks."""


class WrongValue(UserError):
    """A value is not one of those that are possible."""

    is_wrong_value = True


class ConfigError(UserError):
    """A config that cannot be built."""


class DevicesMismatch(ConfigError):
    """A value does not fit the devices that there are; another start may have others."""


class FieldError(UserError):
    """A component cannot work with its settings; changing one or more of its fields would fix it.

    `fields` are what to set each to, or a word in capitals as a placeholder for it.
    """

    def __init__(self, message: str, **fields: Any):
        super().__init__(f"{message}; set {', '.join(f'{k}={v}' for k, v in fields.items())}")
        self.message, self.fields = message, fields


class Unreachable(UserError, OSError):
    """A server or a bucket does not give or take something: no file or example is to blame."""


class AccessRefused(Unreachable, PermissionError):
    """A server or a bucket refuses it to this user."""


def pass_unreachable(error: BaseException | None) -> None:
    """Raises the failure of a server or a bucket that an error was raised from, if it was."""
    while error is not None:
        if isinstance(error, Unreachable):
            raise error
        error = error.__cause__


class MissingInput(ConfigError, FileNotFoundError):
    """There is nothing at a path in a config, or not yet."""


class CheckpointMismatch(UserError):
    """The checkpoints of a workdir belong to a different model or order of examples."""


class MissingFile(UserError, FileNotFoundError):
    """There is no file of the name that was given."""


class MissingCheckpoint(ConfigError, FileNotFoundError):
    """The workdir has no checkpoint to evaluate."""


class DamagedCheckpoint(UserError):
    """A checkpoint is not what was written, and there is no other one to use instead."""


class NotSavedError(UserError):
    """The state of a run could not be saved."""


class BrokenDataError(UserError):
    """More examples are broken than the config allows."""


class DivergedError(UserError):
    """The numbers of a run indicate divergence, and it cannot go on."""


class NotFiniteError(DivergedError):
    """The loss is NaN or infinite."""


class WeightsMismatch(UserError):
    """Weights do not fit the model they are meant for."""


class WeightFileError(UserError):
    """A file of weights is missing, damaged, not what its name says, or cannot be written."""


class BrokenImages(UserError):
    """Images that a caller gave cannot be read; the advice is what else the caller can do."""

    def __init__(self, message: str, advice: str):
        super().__init__(f"{message}; {advice}")
        self.message = message


class Stopped(BaseException):
    """The run was asked to stop, and has saved what it had; the same command continues it.

    It is no error, and arrives at any place: nothing that passes over errors may pass over it.
    """

    STATUS = 75
    """The exit status, EX_TEMPFAIL of sysexits.h: start the same command again."""


class Rewound(Exception):
    """The run has decided to return to its last checkpoint and to leave data out."""


@contextlib.contextmanager
def naming_field(where: str) -> Iterator[None]:
    """Makes a ValueError about a part of a config a ConfigError that names its place."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


@contextlib.contextmanager
def checking_values() -> Iterator[None]:
    """Marks errors before anything is read as those of wrong values."""
    try:
        yield
    except UserError as error:
        error.is_wrong_value = not isinstance(error, DevicesMismatch)
        raise


def find_status(error: BaseException | None) -> int:
    """Returns the exit status for an error: `WRONG_USAGE` for a wrong value, else 1.

    What the operating system refuses, such as a file that is not there, may be there next time.
    """
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__
    is_wrong = any(isinstance(each, UserError) and each.is_wrong_value for each in chain)
    return WRONG_USAGE if is_wrong and not any(isinstance(e, OSError) for e in chain) else 1


LINE_MAX = 300  # characters of a message of a library, or of a file's text


def put_in_a_line(text: str) -> str:
    """Returns a text in one line of bounded length that can be printed."""
    line = " ".join(text[: 4 * LINE_MAX].split())
    line = line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def tell_in_a_line(error: BaseException) -> str:
    """Returns an exception's message in one bounded line, after its kind if that is informative."""
    text, kind = put_in_a_line(str(error)), type(error).__name__
    plain = isinstance(error, UserError) or kind in ("ValueError", "OSError")
    return text if text and plain else f"{kind}: {text}".rstrip(": ")


@functools.lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Logs a warning; one that was logged is not logged again in the life of this process."""
    logging.warning("%s", message)


def check_at_least(least: int, **values: int | float | None) -> None:
    """Raises a WrongValue that names the first of the values below `least`; None is not checked."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise WrongValue(f"{name} = {value} must be at least {least}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " (did you mean ...?)" for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_known(field: str, given: object, known: Iterable[str]) -> None:
    """Raises a WrongValue that names a field whose value is none of those there are."""
    if given not in (known := list(known)):
        near = suggest(str(given), known)
        raise WrongValue(f"{field} = {given!r} is unknown{near}; known: {', '.join(known)}")


SHOWN = 8  # parts of a value that are told


def list_methods(protocol: type) -> list[str]:
    """Returns the methods of a protocol."""
    methods = [name for name, x in vars(protocol).items() if callable(x) and name[0] != "_"]
    return [*methods, *(["__call__"] if "__call__" in vars(protocol) else [])]


def check_members(made: Any, protocol: type, where: str) -> None:
    """Checks that an object has what a protocol asks for, and methods where it asks for them.

    Raises:
      ConfigError: it has not; the message names its class and what it lacks.
    """
    attributes, methods = vars(protocol).get("__annotations__", {}), list_methods(protocol)
    # Not asked by its value: a property may refuse what the object was made with.
    missing = [
        n for n in (*attributes, *methods) if not _has_static(made, n) and not hasattr(made, n)
    ]
    kind = getattr(made, "__name__", type(made).__name__)
    if missing:
        raise ConfigError(
            f"{where}: {kind} has no {', '.join(missing)}, which {protocol.__name__} in "
            f"{protocol.__module__} describes; docs/extend.md has one that is whole"
        )
    for name in methods:  # a setting of the same name may hide one
        if not callable(found := getattr(made, name)):
            told = f"must be a method; it is of type {type(found).__name__}"
            raise ConfigError(f"{where}: {kind}.{name} {told}")
    for name in attributes:
        if inspect.isroutine(inspect.getattr_static(made, name, None)):
            raise ConfigError(f"{where}: {kind}.{name} must be a value; it is a method")


def _has_static(made: Any, name: str) -> bool:
    return inspect.getattr_static(made, name, inspect) is not inspect


def is_scalar(value: Any) -> bool:
    """Returns whether a value is one number: of Python, of NumPy or of JAX."""
    if isinstance(value, numbers.Number):
        return not isinstance(value, complex)
    return is_array(value) and value.shape == () and getattr(value.dtype, "kind", "O") in "biufV"


def is_array(value: Any) -> bool:
    """Returns whether a value is an array of NumPy or JAX, or a description of one."""
    return isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype")


def show_value(value: Any) -> str:
    """Describes a value: the shapes and types of arrays, the keys of dictionaries."""
    if is_array(value):
        return f"{value.dtype}[{' '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        parts = [f"{name!r}: {show_value(part)}" for name, part in value.items()]
        return f"{{{_join(parts)}}}"
    if isinstance(value, tuple | list):
        first, last = "()" if isinstance(value, tuple) else "[]"
        return f"{first}{_join([show_value(part) for part in value])}{last}"
    return "None" if value is None else type(value).__name__


def _join(parts: list[str]) -> str:
    return ", ".join(parts if len(parts) <= SHOWN else [*parts[:SHOWN], "..."])


def make_fault(
    where: str, made: Any, member: str, found: str, wanted: str, verb: str = "returns"
) -> ConfigError:
    """Returns the error of an object one of whose members returns something else than it must."""
    return ConfigError(f"{where}: {type(made).__name__}.{member} {verb} {found}, not {wanted}")
