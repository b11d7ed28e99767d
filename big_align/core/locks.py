"""Locks of folders, which the system ends with the process that has them."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from big_align.core.errors import UserError


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike, refusal: str | None = None) -> Iterator[None]:
    """Keeps other processes of this machine that lock a folder out of it.

    If another has it, this waits or, given a refusal, raises a UserError. On a file system without
    locks it does nothing.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise UserError(f"{os.fspath(folder)}: {refusal}") from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)  # which unlocks it
