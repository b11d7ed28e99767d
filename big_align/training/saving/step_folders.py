"""Folders of checkpoints as files: records, and what is not, or no longer is, a checkpoint."""

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from big_align.core import formats, whole_files
from big_align.core.errors import UserError, tell_in_a_line
from big_align.core.regular_files import check_regular, is_missing, read_regular

KIND = "checkpoint"
FOLDER = "checkpoints"  # of a workdir: its checkpoints, each in a folder named by its step
DAMAGED = "damaged_"  # prefix of the name of a checkpoint that was set aside
STRAY = "stray_"  # prefix for a folder that is named like a checkpoint but does not hold one
PROBE = "probe_of_process_"  # in the name of a file that shows whether a process can write
PROBE_BYTES = 4096  # a full disk may still take a name


def find_folder(workdir: str, folder: str | None) -> epath.Path:
    """Returns a run's folder of checkpoints, from its workdir and `config.checkpoint.folder`."""
    chosen = folder or os.path.join(workdir, FOLDER)
    try:
        return epath.Path(chosen if "://" in chosen else os.path.abspath(chosen))
    except KeyError:
        raise UserError(
            f"{chosen}: checkpoints are kept in a local folder or in a bucket, gs://... or s3://..."
        ) from None


def list_steps(folder: epath.Path) -> list[int]:
    """Returns the steps of which a folder has what is named like a checkpoint."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def check_files(folder: epath.Path) -> None:
    """Refuses a pipe or a device beside the folders of a checkpoint, where Orbax reads files."""
    local = "://" not in os.fspath(folder) and folder.is_dir()
    for step in list_steps(folder) if local else ():
        paths = (folder / str(step)).iterdir() if (folder / str(step)).is_dir() else ()
        for path in paths:
            if path.exists() and not path.is_dir():
                try:
                    check_regular(path)
                except OSError as error:
                    raise UserError(
                        f"{error}; remove it, which the checkpoint can do without"
                    ) from error


def has_steps(folder: epath.Path) -> bool:
    """Returns whether there is a folder that has what is named like a checkpoint."""
    try:
        return folder.is_dir() and bool(list_steps(folder))
    except ImportError as error:  # of a bucket's package, where there is no TensorFlow to open it
        raise UserError(f"config.checkpoint.folder = {os.fspath(folder)!r}: {error}") from error


def read_json(path: epath.Path) -> Any:
    """Reads a file of JSON in a checkpoint; None if it is not there or not whole."""
    try:
        return json.loads(read_regular(path))
    except (ValueError, RecursionError):
        return None
    except Exception as error:
        if not is_missing(error):
            raise
        return None


def read_record(checkpoint: epath.Path) -> dict[str, Any] | None:
    """Reads what a checkpoint was made with; None if it cannot be read."""
    path = checkpoint / "record" / "metadata"
    found = read_json(path)
    if not isinstance(found, dict):
        return None
    formats.check(KIND, found, path)
    return formats.strip(found)


def read_numbers(
    folder: epath.Path, steps: Sequence[int], logged: Mapping[str, Any]
) -> dict[int, Any]:
    """Returns the evaluation of each checkpoint; it may have been `logged` after the save."""
    records = {step: read_record(folder / str(step)) or {} for step in steps}
    return {step: x.get("numbers") or logged.get(str(step)) for step, x in records.items()}


def set_aside(folder: epath.Path, step: int, fault: str) -> str:
    """Renames a folder that has the name of a checkpoint, out of the way; tells what was done."""
    old = folder / str(step)
    holds = old.is_dir() and any((old / item).exists() for item in ("state", "record"))
    name = f"{DAMAGED if holds else STRAY}{step}"
    taken = {path.name for path in folder.iterdir()}
    names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    new = folder / next(free for free in names if free not in taken)
    old.rename(new)
    what = "is damaged" if holds else "is not a checkpoint"
    return f"{old} {what} ({fault}); its name is now {new.name}"


def list_damaged(folder: epath.Path) -> list[str]:
    """Lists the checkpoints that were set aside."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(DAMAGED))


def find_reason(error: Exception) -> str:
    """Returns the system's error text, which the array writer puts at the end of a page of text."""
    said = (os.strerror(number) for number in errno.errorcode)
    return next((reason for reason in said if reason in str(error)), tell_in_a_line(error))


def try_writing(folder: epath.Path, process: int) -> str:
    """Writes a small file and removes it; returns why that fails, nothing if it does not."""
    path = folder / whole_files.name_partial(f"{PROBE}{process}").name
    try:
        path.write_bytes(bytes(PROBE_BYTES))
    except Exception as error:  # those of buckets are of TensorFlow's, and no OSErrors
        return find_reason(error)
    finally:
        with contextlib.suppress(Exception):
            path.unlink(missing_ok=True)
    return ""
