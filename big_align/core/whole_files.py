"""Files that are written whole or not at all: under another name, which is then replaced.

A process may be killed at any time, a disk may be full, and two processes may write one file at
once. Whoever reads it finds the old content or the new, and never a part.

Where processes must not come at once, one locks the folder: the system ends a lock with the process
that has it.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from big_align.core.errors import UserError, WrongValue

PARTIAL = ".partial"  # the ending of files and folders that are not complete
NO_LINKS = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK))
"""Errors of file systems that give no file a second name, such as FAT and most of FUSE."""
LEFT_AFTER = 3600  # seconds after which nobody writes to a file any more


def name_partial(path: str | os.PathLike) -> pathlib.Path:
    """Returns where to write a file or folder first: beside it, and a new name at each call.

    Process numbers would not do, since several machines may share the folder. The name is hidden,
    so that what lists the files of a folder passes over it.
    """
    path = pathlib.Path(path)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")


def find_whole(name: str) -> str:
    """Returns the name of the file that is first written under a name of `name_partial`."""
    return name.removesuffix(PARTIAL).rpartition(".")[0].removeprefix(".")


def check_local(path: str | os.PathLike, flag: str = "--output") -> None:
    """Refuses an address such as gs://..., of which a folder would be made here."""
    if re.match(r"[a-zA-Z][\w+.-]+:/", os.fspath(path)):  # a `pathlib.Path` has lost a slash
        raise UserError(
            f"{flag}={os.fspath(path)} is an address, and files are written here: name a local "
            "path, and copy it there afterwards"
        )


def check_file(
    path: str, flag: str = "--output", endings: Sequence[str] = (), overwrite: bool = True
) -> None:
    """Checks that a file can be written, before there is what goes into it; makes its folder."""
    check_local(path, flag)
    given, target = f"{flag}={path}", pathlib.Path(path)
    if endings and not path.lower().endswith(tuple(endings)):
        raise WrongValue(f"{given} must end in {' or '.join(endings)}")
    if target.is_dir():  # as nothing is, the current folder
        raise UserError(f"{given} is a folder; name a file in it")
    if target.exists() and not overwrite:
        raise UserError(f"{given} is there already; --overwrite replaces it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{given}: the folder {target.parent} cannot be made: {error.strerror}"
        ) from error
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"{given}: {target.parent} cannot be written to")


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Names the file in the system's errors of writing to one that is open, which lack it."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def open_whole(path: str | os.PathLike, sync: bool = False) -> Iterator[BinaryIO]:
    """Opens a file for writing bytes; it gets its name when the block ends without an exception.

    An existing one is replaced, and stays as it was if this fails; of several writers, the last one
    wins. With `sync`, not even the loss of power leaves a part of the content.
    """
    partial = name_partial(path)
    try:
        with partial.open("xb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: str | os.PathLike, content: bytes, sync: bool = False) -> None:
    """Writes a file, whole or not at all, as `open_whole` does."""
    with naming(path), open_whole(path, sync) as file:
        file.write(content)


def create_whole(path: str | os.PathLike, content: bytes) -> bool:
    """Writes a file, whole, if there is none; returns whether this has made it.

    Of several processes that try at once, one alone succeeds, on NFS too. Where files have one name
    only, another may see a part of the content for a moment.
    """
    partial = name_partial(path)
    try:
        with naming(path):
            partial.write_bytes(content)
        try:
            os.link(partial, path)
        except FileNotFoundError:  # another process has tidied up: it needs no file any more
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with naming(path), open(path, "xb") as file:
                file.write(content)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def remove_leftovers(folder: pathlib.Path) -> None:
    """Removes what writers that were killed have left, if none has written to it for an hour."""
    for partial in folder.glob(f"*{PARTIAL}"):
        with contextlib.suppress(OSError):  # another process may remove it
            if time.time() - partial.stat().st_mtime > LEFT_AFTER:
                partial.unlink()


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
