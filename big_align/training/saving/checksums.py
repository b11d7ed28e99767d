"""Checksums of the files of a checkpoint: what is read is what was written, or is not used.

They are checksums of files, so they cover arrays, their shapes and the records alike, and are
checked before any of these is parsed. CRC-32 detects every change within 32 consecutive bits, and
all but one in 2^32 of the others.
"""

import concurrent.futures
import json
import zlib
from collections.abc import Sequence
from typing import Any

from etils import epath

from big_align.training.saving.step_folders import is_missing, read_record

ITEM, FILE = "checksums", "checksums.json"
"""The folder of a checkpoint that holds the checksums, and the file in it."""
BLOCK = 4 * 2**20  # bytes read at once
THREADS = 8  # files at once; computing a checksum releases the interpreter lock


def write_checksums(checkpoint: epath.Path, target: epath.Path, step: int) -> None:
    """Writes the checksums of all files in a checkpoint's folders, once these are written.

    Args:
      checkpoint: folder of the checkpoint; files directly in it are Orbax's metadata, and change
        later.
      target: where the checksums go.
      step: step of the checkpoint.
    """
    names = _list_files(checkpoint)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        sums = list(pool.map(lambda name: _add_up(checkpoint / name), names))
    files = {name: list(pair) for name, pair in zip(names, sums, strict=True)}
    content = {"step": step, "files": files}
    target.write_text(json.dumps(content | {"crc32": _add_up_json(content)}) + "\n")


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
    try:
        content = json.loads((checkpoint / ITEM / FILE).read_text())
        crc32 = content.pop("crc32")
        whole = _add_up_json(content) == crc32
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
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
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        faults = pool.map(lambda name: _compare(checkpoint, name, content["files"][name]), names)
        return next(filter(None, faults), None)


def _compare(checkpoint: epath.Path, name: str, wanted: Sequence[int]) -> str | None:
    try:
        size, crc32 = _add_up(checkpoint / name)
    except Exception as error:
        if not is_missing(error):
            raise
        return f"{name} cannot be read ({type(error).__name__})"
    if size != wanted[0]:
        return f"{name} has {size} bytes, not {wanted[0]}"
    return None if crc32 == wanted[1] else f"{name} is not what was written (CRC-32)"


def _list_files(checkpoint: epath.Path) -> list[str]:
    """Lists the files in the folders of a checkpoint, except the checksums themselves."""
    found, folders = [], [path for path in checkpoint.iterdir() if path.is_dir()]
    while folders:
        folder = folders.pop()
        if folder.parent == checkpoint and folder.name.split(".")[0] == ITEM:
            continue
        for path in folder.iterdir():
            if path.is_dir():
                folders.append(path)
            else:
                found.append(path.relative_to(checkpoint).as_posix())
    return sorted(found)


def _add_up(path: epath.Path) -> tuple[int, int]:
    """Returns the size and the CRC-32 of a file."""
    size, crc32 = 0, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size, crc32 = size + len(block), zlib.crc32(block, crc32)
    return size, crc32


def _add_up_json(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
