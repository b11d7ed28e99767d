"""Checksums of the files of a checkpoint, which cover its arrays and its records alike."""

import json

from etils import epath

from big_align.core import file_checksums
from big_align.core.regular_files import is_missing, read_regular
from big_align.training.saving.step_folders import read_record

ITEM, FILE = "checksums", "checksums.json"
"""The folder of a checkpoint that holds the checksums, and the file in it."""


def write_checksums(checkpoint: epath.Path, target: epath.Path, step: int) -> None:
    """Writes the checksums of all files in a checkpoint's folders, once these are written.

    Args:
      checkpoint: folder of the checkpoint; files directly in it are Orbax's metadata, and change
        later.
      target: where the checksums go.
      step: step of the checkpoint.
    """
    folders = [path for path in checkpoint.iterdir() if path.is_dir()]
    names = [
        f"{folder.name}/{name}"
        for folder in folders
        if folder.name.split(".")[0] != ITEM
        for name in file_checksums.list_files(folder)
    ]
    content = {"step": step, "files": file_checksums.add_up(checkpoint, names)}
    target.write_text(json.dumps(file_checksums.seal(content)) + "\n")


def inspect(checkpoint: epath.Path, step: int, share: tuple[int, int]) -> tuple[str | None, bool]:
    """Checks a checkpoint, which may be older than checksums; it takes what `find_fault` does.

    Returns:
      What is wrong with it, as far as this process looks, and whether it has checksums at all.
    """
    if (checkpoint / ITEM).exists():
        return find_fault(checkpoint, step, share), True
    written = read_record(checkpoint)
    if written is None:
        return "its record cannot be read", False
    return (f"{ITEM}/{FILE} is missing" if ITEM in written else None), False


def find_fault(checkpoint: epath.Path, step: int, share: tuple[int, int] = (0, 1)) -> str | None:
    """Checks the files of a checkpoint.

    Args:
      checkpoint: folder of the checkpoint.
      step: the step in its name.
      share: number of this process, and of processes; each reads some of the files.

    Returns:
      What is wrong with the first file that differs from what was written; None if none does.
    """
    content = None
    try:
        content = json.loads(read_regular(checkpoint / ITEM / FILE))
        whole = file_checksums.is_sealed(content)
    except (ValueError, RecursionError):
        whole = False
    except Exception as error:
        if not is_missing(error):
            raise
        whole = False
    if not whole:
        return f"{ITEM}/{FILE} cannot be read"
    if content["step"] != step:
        return f"it was saved at step {content['step']}"
    process, processes = share
    names = sorted(content["files"])[process::processes]
    return file_checksums.find_fault(checkpoint, {name: content["files"][name] for name in names})
