"""Arrays in .npz files, read whole: a checksum covers every byte."""

import zipfile
from collections.abc import Iterable
from typing import Any

import numpy as np


def read_arrays(file: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Reads the named arrays from a file; those that it lacks are left out.

    If a damaged header makes an array shorter, NumPy's own reader stops at the end of that array,
    before the checksum is compared.

    Args:
      file: an .npz, open for reading bytes.
      names: the names of the arrays.

    Raises:
      ValueError: an array cannot be read; the message names it.
      Exception: the file is not an .npz; the kind that `zipfile` raises depends on the bytes.
    """
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        there = archive.namelist()
        twice = sorted({name for name in there if there.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} is in it twice")
        for name in there:  # a name is stored in two places, which are compared here
            archive.open(name).close()
        for name in names:
            if f"{name}.npy" not in there:
                continue
            try:
                with archive.open(f"{name}.npy") as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                    if member.read(1):
                        raise ValueError("it goes on after the end of the array")
            except Exception as error:  # zipfile, zlib and NumPy raise all kinds of errors
                raise ValueError(f"the array {name!r} cannot be read ({error})") from error
    return arrays


def list_arrays(file: Any) -> list[str]:
    """Lists the names of the arrays in an .npz file; raises like `read_arrays`."""
    with zipfile.ZipFile(file) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]
