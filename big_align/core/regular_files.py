"""Files that were given, opened only if they are files.

A folder that was copied, unpacked or written by others may hold a pipe, a device or a folder under
the name of a file. Reading a pipe waits for a writer, and a device never ends.
"""

import os
import stat
from typing import Any, BinaryIO

import numpy as np

from big_align.core.errors import UserError, tell_in_a_line

MEMBER_MAX = 2**30  # bytes of an image or a text; a larger one would fill the memory


def open_regular(path: str | os.PathLike) -> int:
    """Opens a local file, and nothing else, for reading; returns its descriptor."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a zero byte in the path
        raise OSError(f"{os.fspath(path)!a}: {error}") from error
    if (fault := _find_fault(os.fstat(number).st_mode)) is None:
        return number
    os.close(number)
    raise OSError(f"{os.fspath(path)} is {fault}, not a file")


def open_given(path: Any) -> BinaryIO:
    """Opens a file for reading bytes: a local one like `open_regular`, or that of a bucket."""
    if "://" in os.fspath(path):
        return path.open("rb")
    return os.fdopen(open_regular(path), "rb")


def read_regular(path: Any) -> bytes:
    """Reads all of a file, as `open_given` opens it."""
    with open_given(path) as file:
        return file.read()


def check_regular(path: str | os.PathLike) -> None:
    """Raises OSError if a path is no local file, for libraries that open files by their names."""
    if fault := _find_fault(os.stat(path).st_mode):
        raise OSError(f"{os.fspath(path)} is {fault}, not a file")


def map_array(path: str | os.PathLike) -> np.ndarray:
    """Opens the array of a local file of NumPy, memory-mapped."""
    try:
        check_regular(path)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy raises all kinds of errors for broken headers
        told = tell_in_a_line(error)
        raise UserError(f"{path} is missing, cut short or no array ({told})") from error


def _find_fault(mode: int) -> str | None:
    """Returns what something is by its mode; None for a file."""
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((kind for test, kind in kinds if test(mode)), "a device")


def is_missing(error: Exception) -> bool:
    """Returns whether an error says that a file is not there or cannot be read.

    Those of a bucket are TensorFlow's. One that says that the bucket cannot be reached, or that
    this user may not read the file, says nothing about the file.
    """
    if isinstance(error, PermissionError):
        return False
    return isinstance(error, OSError) or type(error).__name__ == "NotFoundError"
