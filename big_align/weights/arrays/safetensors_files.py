"""Files in the safetensors format: the length of a header, the header in JSON, the arrays.

The library of that name needs all arrays in memory to write them; the format is small enough to be
read and written here.
Source: https://github.com/huggingface/safetensors, section "Format".
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from big_align.core.errors import WeightFileError
from big_align.core.whole_files import open_whole
from big_align.weights.arrays.stored_arrays import (
    DTYPES,
    LONGEST_HEADER,
    SAFETENSORS,
    BinaryFile,
    StoredArray,
    are_sizes,
    parse_json,
    recognize,
)

CODES = {
    "F64": DTYPES["float64"],
    "F32": DTYPES["float32"],
    "F16": DTYPES["float16"],
    "BF16": DTYPES["bfloat16"],
    "I64": DTYPES["int64"],
    "I32": DTYPES["int32"],
    "I16": DTYPES["int16"],
    "I8": DTYPES["int8"],
    "U64": DTYPES["uint64"],
    "U32": DTYPES["uint32"],
    "U16": DTYPES["uint16"],
    "U8": DTYPES["uint8"],
    "BOOL": DTYPES["bool"],
}

CODE_OF_DTYPE = {dtype: code for code, dtype in CODES.items()}

Content = np.ndarray | jax.Array | Callable[[], np.ndarray | jax.Array]
"""An array, or what makes it."""


def locate_arrays(file: BinaryFile) -> dict[str, StoredArray]:
    """Reads from the header of a file where each array is, by name."""
    content = recognize(file)
    if content != SAFETENSORS:
        raise WeightFileError(f"{file.path} is not {SAFETENSORS}: it is {content}")
    length = int.from_bytes(file.read(0, 8), "little")
    header = parse_json(file.read(8, length), f"the header of {file.path}")
    header.pop("__metadata__", None)
    arrays = {name: _locate(file, 8 + length, name, entry) for name, entry in header.items()}
    position = 8 + length
    for name, array in sorted(arrays.items(), key=lambda item: (item[1].start, item[1].end)):
        if array.start != position:
            raise WeightFileError(
                f"the header of {file.path} puts {name!r} at byte {array.start}, where the array "
                f"before it ends at {position}; arrays must neither overlap nor leave gaps"
            )
        position = array.end
    if position != file.size:
        raise WeightFileError(
            f"{file.path} has {file.size} bytes where its header describes {position}: "
            f"{'it is truncated' if position > file.size else 'something follows the arrays'}; "
            f"copy or download it again"
        )
    return arrays


def _locate(file: BinaryFile, origin: int, name: str, entry: Any) -> StoredArray:
    match entry:
        case {
            "dtype": str(dtype),
            "shape": list(shape),
            "data_offsets": [int(start), int(end)],
        } if are_sizes(shape) and start >= 0:
            if dtype not in CODES:
                raise WeightFileError(
                    f"{file.path}: {name!r} is of type {dtype}; known are {', '.join(CODES)}"
                )
            array = StoredArray(file, origin + start, tuple(shape), CODES[dtype])
            if array.end == origin + end:
                return array
    raise WeightFileError(
        f"the header of {file.path} describes {name!r} as {str(entry)[:200]}; it must have a dtype,"
        f" a shape, and data_offsets that are as far apart as the array has bytes"
    )


def write_safetensors(path: str | os.PathLike, arrays: Mapping[str, Content]) -> None:
    """Writes a file, whole or not at all, with one array in memory at a time.

    A function in place of an array is called twice: for the header, which comes first, and for the
    data.
    """
    path = pathlib.Path(path).resolve()
    if not path.parent.is_dir():
        raise WeightFileError(f"{path} cannot be written: there is no folder {path.parent}")
    shapes = {}
    for name in sorted(arrays):
        array = _make(arrays[name])
        if array.dtype not in CODE_OF_DTYPE:
            known = ", ".join(DTYPES)
            raise WeightFileError(f"{path}: {name!r} is of type {array.dtype}; known are {known}")
        shapes[name] = jax.ShapeDtypeStruct(array.shape, array.dtype)
    # Wide types first, so that every array begins at a multiple of the size of its elements.
    order = sorted(shapes, key=lambda name: -shapes[name].dtype.itemsize)
    header = _make_header(path, {name: shapes[name] for name in order})
    with open_whole(path, sync=True) as file:
        file.write(header)
        for name in order:
            array = _make(arrays[name])
            if (array.shape, array.dtype) != (shapes[name].shape, shapes[name].dtype):
                raise WeightFileError(
                    f"{path}: {name!r} is {array.dtype}{list(array.shape)} when made again, "
                    f"not {shapes[name].dtype}{list(shapes[name].shape)}"
                )
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _make(array: Content) -> np.ndarray:
    array = np.asarray(array() if callable(array) else array)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _make_header(path: pathlib.Path, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> bytes:
    entries, position = {}, 0
    for name, array in shapes.items():
        end = position + math.prod(array.shape) * array.dtype.itemsize
        entries[name] = {
            "dtype": CODE_OF_DTYPE[np.dtype(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    header = {"__metadata__": {"format": "pt"}}  # which transformers requires
    header |= {name: entries[name] for name in sorted(entries)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    if len(text) > LONGEST_HEADER:
        raise WeightFileError(f"{path}: the header would be longer than {LONGEST_HEADER} bytes")
    return len(text).to_bytes(8, "little") + text
