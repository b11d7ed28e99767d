"""Files that torch wrote before version 1.6: pickles one after another, then the elements.

The pickles are a magic number, the version of the format, the sizes of C's types, what was saved,
and the keys of its storages. Then follow the storages in the order of these keys, each as the
number of its elements (eight bytes) and the elements themselves.
"""

import io
import pickle
import sys
from typing import Any

import numpy as np

from big_align.errors import WeightFileError
from big_align.interop.arrays.state_dict_pickles import StateDictUnpickler
from big_align.interop.arrays.stored_arrays import BinaryFile

VERSION = 1001
"""Of the format, the only one there was."""


class _PlainUnpickler(pickle.Unpickler):
    """Makes numbers, texts, lists and dictionaries, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} stands where only numbers are expected")


def load_tree(file: BinaryFile) -> Any:
    """Returns what was saved, with a `StoredArray` for each tensor.

    Raises:
      WeightFileError: the file is truncated or asks for code.
      Exception: of any kind, where a pickle is damaged.
    """
    with open(file.path, "rb") as stream:
        _, version, system = (_PlainUnpickler(stream).load() for _ in range(3))
        if version != VERSION:
            raise pickle.UnpicklingError(f"the format has version {version!r}, not {VERSION}")
        byte_order = "little" if system["little_endian"] else "big"
        start = stream.tell()

        # Where the storages lie is known only after the types that the tree gives them, so the
        # tree is made twice; the first time every storage may be of any size.
        dtypes: dict[str, np.dtype | None] = {}

        def note(key: str, dtype: np.dtype | None) -> tuple[int, int]:
            if dtypes.setdefault(key, dtype) != dtype:
                raise pickle.UnpicklingError(f"the storage {key!r} has two types")
            return 0, sys.maxsize

        StateDictUnpickler(stream, file, note, byte_order).load()
        places = _find_storages(file, stream, dtypes)
        stream.seek(start)

        def find(key: str, dtype: np.dtype | None) -> tuple[int, int]:
            return places[key]

        return StateDictUnpickler(stream, file, find, byte_order).load()


def _find_storages(
    file: BinaryFile, stream: io.BufferedIOBase, dtypes: dict[str, np.dtype | None]
) -> dict[str, tuple[int, int]]:
    """Returns where the elements of each storage begin and end; the stream is at the keys."""
    keys, places = _PlainUnpickler(stream).load(), {}
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
