"""Checksums of files: what is read is what was written, or is not used.

They are of whole files, so they cover arrays, their types and shapes, and tables alike, and are
compared before any of these is parsed. CRC-32 detects every change within 32 consecutive bits, and
all but one in 2^32 of the others.
"""

import concurrent.futures
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from big_align.core.regular_files import is_missing, open_given

SEAL = "crc32"  # the field of a JSON object with the checksum of its other fields
BLOCK = 4 * 2**20  # bytes read at once
THREADS = 8  # files at once; computing a checksum releases the interpreter lock


def add_up(folder: Any, names: Iterable[str]) -> dict[str, list[int]]:
    """Returns the size and the CRC-32 of files by name; their folder may be an `epath`."""
    names = sorted(names)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        sums = pool.map(lambda name: _add_up(folder / name), names)
        return {name: list(pair) for name, pair in zip(names, sums, strict=True)}


def find_fault(folder: Any, files: Mapping[str, Sequence[int]]) -> str | None:
    """Returns what is wrong with the first file that is not as `add_up` said; None if all are."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        faults = pool.map(lambda item: _compare(folder, *item), sorted(files.items()))
        return next(filter(None, faults), None)


def _compare(folder: Any, name: str, wanted: Sequence[int]) -> str | None:
    try:
        size, crc32 = _add_up(folder / name)
    except Exception as error:
        if not is_missing(error):
            raise
        return f"{name} cannot be read ({_tell(error, folder / name)})"
    if size != wanted[0]:
        return f"{name} has {size} bytes, not {wanted[0]}"
    return None if crc32 == wanted[1] else f"{name} is not what was written (CRC-32)"


def _tell(error: Exception, path: Any) -> str:
    """Returns the kind of an error, or what it says of a path that is no file."""
    told = str(error).removeprefix(f"{os.fspath(path)} is ")
    return told if told.endswith(", not a file") else type(error).__name__


def list_files(folder: Any) -> list[str]:
    """Lists the files in a folder and in the folders in it, by their paths from there."""
    found, folders = [], [folder]
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir():
                folders.append(path)
            else:
                found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with the checksum of its fields, in `SEAL`."""
    fields = {name: value for name, value in content.items() if name != SEAL}
    return fields | {SEAL: zlib.crc32(json.dumps(fields, sort_keys=True).encode())}


def is_sealed(content: Any) -> bool:
    """Returns whether something is a JSON object as `seal` made it."""
    return isinstance(content, dict) and seal(content).get(SEAL) == content.get(SEAL)


def _add_up(path: Any) -> tuple[int, int]:
    """Returns the size and the CRC-32 of a file."""
    size, crc32 = 0, 0
    with open_given(path) as file:
        while block := file.read(BLOCK):
            size, crc32 = size + len(block), zlib.crc32(block, crc32)
    return size, crc32
