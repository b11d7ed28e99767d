"""Files that torch wrote before version 1.6: pickles one after another, then the elements.

The pickles are a magic number, the version of the format, the sizes of C's types, what was saved,
and the keys of its storages. The storages follow in the order of these keys, each as the number of
its elements (eight bytes) and the elements themselves.
"""

import io
import os
import sys
from pickle import UnpicklingError
from typing import Any

import numpy as np

from big_align.core.errors import WeightFileError
from big_align.weights.arrays.pickle_programs import PickleProgram
from big_align.weights.arrays.state_dict_pickles import StateDictPickle
from big_align.weights.arrays.stored_arrays import BinaryFile

VERSION = 1001
"""The version of the format, the only one there was."""


class _Stream(io.BufferedReader):
    """A file that allocates no memory for what is beyond its end."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > io.DEFAULT_BUFFER_SIZE:
            size = min(size, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(size)


def load_tree(file: BinaryFile) -> Any:
    """Returns what was saved, with a `StoredArray` for each tensor; any error means damage."""
    with _Stream(io.FileIO(file.path)) as stream:
        _, version, system = (_read_numbers(stream, file) for _ in range(3))
        if version != VERSION:
            given = version if type(version) is int else "no number"
            raise UnpicklingError(f"the format has version {given}, not {VERSION}")
        byte_order = "little" if system["little_endian"] else "big"
        start = stream.tell()

        # The positions of the storages depend on their types, which only the tree shows, so the
        # tree is made twice; the first time every storage may be of any size.
        dtypes: dict[str, np.dtype | None] = {}

        def note(key: str, dtype: np.dtype | None) -> tuple[int, int]:
            if dtypes.setdefault(key, dtype) != dtype:
                raise UnpicklingError(f"the storage {key!r} has two types")
            return 0, sys.maxsize

        StateDictPickle(stream, file, note, byte_order).run()
        places = _find_storages(file, stream, dtypes)
        stream.seek(start)
        return StateDictPickle(stream, file, lambda key, dtype: places[key], byte_order).run()


def _read_numbers(stream: io.BufferedIOBase, file: BinaryFile) -> Any:
    return PickleProgram(stream, file.path, file.size).run()


def _find_storages(
    file: BinaryFile, stream: io.BufferedIOBase, dtypes: dict[str, np.dtype | None]
) -> dict[str, tuple[int, int]]:
    """Returns where the elements of each storage begin and end; the stream is at the keys."""
    keys, places = _read_numbers(stream, file), {}
    position = stream.tell()
    for key in keys:
        dtype = dtypes[key]
        count = int.from_bytes(file.read(position, 8), "little", signed=True)
        start = position + 8
        position = start + count * (dtype.itemsize if dtype else 1)
        if count < 0 or position > file.size:
            raise WeightFileError(
                f"{file.path} is truncated or damaged: the storage {key!r} of {count} elements "
                f"goes beyond the end of the file; copy or download it again"
            )
        places[key] = start, position
    return places
