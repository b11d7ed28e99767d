"""Checksums of the files of a checkpoint, which cover its arrays and its records alike."""

import json

from etils import epath

from big_align.core import file_checksums
from big_align.training.saving.step_folders import read_json

ITEM, FILE = "checksums", "checksums.json"
"""The folder of a checkpoint that holds the checksums, and the file in it."""


def write_checksums(checkpoint: epath.Path, target: epath.Path, step: int) -> None:
    """Writes the checksums of all files in a checkpoint's folders, once these are written."""
    # Files directly in it are Orbax's metadata, and change later.
    folders = [path for path in checkpoint.iterdir() if path.is_dir()]
    names = [
        f"{folder.name}/{name}"
        for folder in folders
        if folder.name.split(".")[0] != ITEM
        for name in file_checksums.list_files(folder)
    ]
    content = {"step": step, "files": file_checksums.add_up(checkpoint, names)}
    target.write_text(json.dumps(file_checksums.seal(content)) + "\n")


def find_fault(checkpoint: epath.Path, step: int, share: tuple[int, int] = (0, 1)) -> str | None:
    """Returns what is wrong with the first file that is not as it was written; None if all are.

    Each process reads some of the files: `share` is its number, and how many there are.
    """
    content = read_json(checkpoint / ITEM / FILE)
    if not file_checksums.is_sealed(content):
        return f"{ITEM}/{FILE} cannot be read"
    if content["step"] != step:
        return f"it was saved at step {content['step']}"
    process, processes = share
    names = sorted(content["files"])[process::processes]
    return file_checksums.find_fault(checkpoint, {name: content["files"][name] for name in names})
