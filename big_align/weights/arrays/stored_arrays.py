"""Arrays in files, read on demand.

An array is read at its position into memory of its own. It is not mapped: pages of a map count as
memory of the process for as long as the map lives, so reading a file through it and keeping what
was read would take twice the size of the file.
"""

import math
import os
import pathlib
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from big_align.core.errors import WeightFileError
from big_align.core.regular_files import open_regular
from big_align.data.files import decode
from big_align.data.json_texts import NotJson
from big_align.data.json_texts import parse_json as parse_any_json

DTYPES = {
    name: np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "bool", "int64", "int32", "int16", "int8"),
        *("uint64", "uint32", "uint16", "uint8"),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}

SAFETENSORS = "a safetensors file (.safetensors)"
TORCH = "a zip archive, as torch.save writes it (.pt, .pth, .bin)"
STREAM = "a file that torch wrote before version 1.6"
TAR = "a tar archive, as torch wrote before version 0.2"

SIGNATURES = (  # what a file begins with, and what it is then
    (b"PK\x03\x04", TORCH),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", STREAM),
    (b"\x80", "a pickle"),
    (b"version https://git-lfs", "a pointer of git-lfs (`git lfs pull` fetches the file itself)"),
    (b"<", "a web page (the download failed)"),
    (b"{", "JSON"),
)

LONGEST_HEADER = 100_000_000
"""Bytes of JSON in a safetensors file, the limit of the format."""

LONGEST_NAME, MOST_AXES, LARGEST_SIZE = 1000, 32, 2**48
"""No array has a longer name, more axes, or more elements along one; 32 is NumPy's own limit."""

BYTES_OF_A_VALUE = 16
"""Bytes of JSON for each value beyond the first million; names of arrays are longer."""


class BinaryFile:
    """A file open for reading at positions, from any thread."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        try:
            self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        except FileNotFoundError:
            raise WeightFileError(f"{path} does not exist") from None
        except OSError as error:
            raise WeightFileError(f"{path} cannot be read: {error.strerror or error}") from error
        self.size = os.fstat(self._file.fileno()).st_size

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills a buffer with the bytes from `start` on; WeightFileError if there are fewer."""
        done = 0
        while done < len(buffer):  # the system reads at most 2 GiB in one go
            count = os.preadv(self._file.fileno(), [buffer[done:]], start + done)
            if not count:
                raise self._truncated(start + done, start + len(buffer))
            done += count

    def read(self, start: int, size: int) -> bytes:
        """Returns `size` bytes from `start` on; raises like `read_into`."""
        if start + size > self.size:  # before memory is allocated for what is not there
            raise self._truncated(self.size, start + size)
        buffer = bytearray(size)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def _truncated(self, end: int, needed: int) -> WeightFileError:
        return WeightFileError(
            f"{self.path} is truncated: it ends at byte {end}, where {needed} are needed; copy or "
            f"download it again"
        )

    def close(self) -> None:
        """Closes the file; arrays that were read remain."""
        self._file.close()


class StoredArray(NamedTuple):
    """Where an array is in a file.

    This is a tuple because a pickle can overwrite attributes of other objects that it makes.
    """

    file: BinaryFile
    start: int  # of the first element, in bytes
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None = None  # in elements; None if rows are contiguous
    swapped: bool = False  # whether the file has another byte order than this machine

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Position after the last element, in bytes."""
        if self.strides is None or 0 in self.shape:
            extent = math.prod(self.shape)
        else:
            steps = zip(self.shape, self.strides, strict=True)
            extent = 1 + sum((size - 1) * stride for size, stride in steps)
        return self.start + extent * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Returns the array, writable and with contiguous rows."""
        raw = np.empty(self.end - self.start, np.uint8)
        self.file.read_into(self.start, memoryview(raw))
        if self.swapped:
            raw.view(f"u{self.dtype.itemsize}").byteswap(inplace=True)
        flat = raw.view(self.dtype)
        if self.strides is None or 0 in self.shape:
            return flat.reshape(self.shape)
        steps = [stride * self.dtype.itemsize for stride in self.strides]
        array = np.lib.stride_tricks.as_strided(flat, self.shape, steps)
        return flat.reshape(self.shape) if array.flags.c_contiguous else array.copy(order="C")


def are_sizes(numbers: Any) -> bool:
    """Returns whether something is a list or tuple of sizes, few and small enough to multiply."""
    if type(numbers) not in (list, tuple) or len(numbers) > MOST_AXES:
        return False
    return all(type(number) is int and 0 <= number <= LARGEST_SIZE for number in numbers)


def recognize(file: BinaryFile) -> str:
    """Identifies what a file is by its first bytes."""
    start = file.read(0, min(file.size, 64))
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= LONGEST_HEADER:
        return SAFETENSORS
    if not start:
        return "empty"
    known = (what for first, what in SIGNATURES if start.lstrip().startswith(first))
    return next(known, f"of an unknown kind (it begins with {start[:8]!r})")


def parse_json(text: bytes, where: str, kind: type = dict) -> Any:
    """Parses a JSON object, or a list; messages say `where`."""
    try:
        parsed = parse_any_json(decode(text), BYTES_OF_A_VALUE)
    except NotJson as error:
        raise WeightFileError(f"{where} {error}") from error
    except ValueError as error:
        raise WeightFileError(f"{where} is not JSON: it {error}") from error
    if not isinstance(parsed, kind):
        raise WeightFileError(f"{where} is not a JSON {'object' if kind is dict else 'list'}")
    return parsed
