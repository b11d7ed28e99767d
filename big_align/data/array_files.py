"""Arrays in .npz files, read whole: a checksum covers every byte."""

import math
import os
import sys
import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np

TIMES_OF_A_FILE, ROOM = 64, 2**28
"""Arrays may unpack to this many times their file plus this many bytes; photographs do not shrink
to a tenth."""
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(file: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads the named arrays from an .npz that is open for reading; it may lack some.

    Sizes are checked in the headers first: a file of a few bytes can describe arrays that fill the
    memory. If a damaged header makes an array shorter, NumPy's own reader stops at the end of that
    array, before the checksum is compared. A ValueError names the array that cannot be read; what
    zipfile raises for other files depends on their bytes.
    """
    arrays = {}
    file.seek(0, os.SEEK_END)
    limit = TIMES_OF_A_FILE * file.tell() + ROOM
    with zipfile.ZipFile(file) as archive:
        there = archive.namelist()
        twice = sorted({name for name in there if there.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} is in it twice")
        for name in there:  # a name is stored in two places, which are compared here
            archive.open(name).close()
        wanted = [name for name in names if f"{name}.npy" in there]
        size = sum(archive.getinfo(f"{name}.npy").file_size for name in wanted)
        if size > limit:
            raise ValueError(f"its arrays unpack to {size} bytes; {limit} are read of such a file")
        for name in wanted:
            try:
                arrays[name] = _read_array(archive, f"{name}.npy")
            except Exception as error:  # zipfile, zlib and NumPy raise all kinds of errors
                raise ValueError(f"the array {name!r} cannot be read ({error})") from error
    return arrays


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Reads an array whose header describes as many bytes as there are."""
    with archive.open(name) as member:
        shape, _, dtype = HEADERS[np.lib.format.read_magic(member)](member)
        size = math.prod(shape) * dtype.itemsize
        rest = archive.getinfo(name).file_size - member.tell()
        if dtype.hasobject or not dtype.itemsize:
            raise ValueError(f"its type is {dtype}, and no number or text")
        if size != rest:
            raise ValueError(f"it is {dtype} {list(shape)}, {size} bytes, and {rest} follow")
    with archive.open(name) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        member.read(1)  # at the end, the checksum is compared
    if dtype.kind == "U":
        letters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(dtype.byteorder))
        if letters.max(initial=0) > sys.maxunicode:
            raise ValueError(f"its texts have the character {letters.max():#x}, which is none")
    return array
