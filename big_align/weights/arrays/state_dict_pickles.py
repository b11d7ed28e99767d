"""The pickles of torch's state dicts, read without running what is pickled.

A pickle is a program that may call any function by its name; here it gets only the few names that a
state dict needs, each as an inert replacement, and any other name ends the reading.
"""

import io
import sys
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np

from big_align.core.errors import WeightFileError, put_in_a_line
from big_align.weights.arrays.pickle_programs import Name, PickleProgram, check_name
from big_align.weights.arrays.stored_arrays import (
    DTYPES,
    MOST_AXES,
    BinaryFile,
    StoredArray,
    are_sizes,
)

STORAGES = {  # what a storage holds; for an untyped one its tensors decide
    "torch.DoubleStorage": DTYPES["float64"],
    "torch.FloatStorage": DTYPES["float32"],
    "torch.HalfStorage": DTYPES["float16"],
    "torch.BFloat16Storage": DTYPES["bfloat16"],
    "torch.LongStorage": DTYPES["int64"],
    "torch.IntStorage": DTYPES["int32"],
    "torch.ShortStorage": DTYPES["int16"],
    "torch.CharStorage": DTYPES["int8"],
    "torch.ByteStorage": DTYPES["uint8"],
    "torch.BoolStorage": DTYPES["bool"],
    "torch.storage.UntypedStorage": None,
}


class Storage(NamedTuple):
    """The elements of one or more tensors: where they are in the file, from byte to byte."""

    start: int
    end: int
    dtype: np.dtype | None


class StateDictPickle(PickleProgram):
    """The pickle of a checkpoint, which makes a `StoredArray` for each tensor.

    `find_storage` finds, from a storage's key and type (None for bytes), where in the file its
    elements begin and end; `byte_order` is that of the machine that saved, "little" or "big".
    """

    def __init__(
        self,
        stream: io.BufferedIOBase,
        file: BinaryFile,
        find_storage: Callable[[str, np.dtype | None], tuple[int, int]],
        byte_order: str,
    ):
        super().__init__(stream, file.path, file.size)
        self._file = file
        self._find_storage = find_storage
        if byte_order not in ("little", "big"):
            raise UnpicklingError(f"its order of bytes is {byte_order[:20]!r}")
        self._swapped = byte_order != sys.byteorder
        self._calls = {
            **dict.fromkeys((*STORAGES, *(f"torch.{name}" for name in DTYPES))),
            "collections.OrderedDict": self.make_dict,
            "yacs.config.CfgNode": self.make_dict,  # the config beside Swin's state dicts
            "torch.Size": self.copy,
            "torch.device": lambda *_: None,
            "torch._utils._rebuild_tensor_v2": self._make_tensor,
            "torch._utils._rebuild_tensor_v3": self._make_tensor_of_dtype,
            "torch._utils._rebuild_parameter": lambda data, *_: data,
            "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
        }

    def find(self, name: str) -> Name:
        if name not in self._calls:
            raise WeightFileError(
                f"{self._file.path} asks for {put_in_a_line(name)}, which a state dict does not "
                f"need; it was not run. If you trust the file, save the state dict by itself with "
                f"torch: torch.save(model.state_dict(), ...)"
            )
        return Name(name, self._calls[name])

    def load_storage(self, pid: Any) -> Storage:
        kind, name, key, _, _, *views = self.copy(pid)
        if kind != "storage" or type(name) is not Name:
            raise UnpicklingError("what is stored elsewhere is no storage")
        dtype = STORAGES[name.full]
        start, end = self._find_storage(check_name(key), dtype)
        if views and views[0] is not None:  # torch before 0.4 had storages within storages
            _, offset, count = views[0]
            size = dtype.itemsize if dtype else 1
            if not are_sizes((offset, count)) or start + (offset + count) * size > end:
                raise UnpicklingError("a storage goes beyond the one that it is part of")
            start, end = start + offset * size, start + (offset + count) * size
        return Storage(start, end, dtype)

    def _make_tensor(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool,
        hooks: Any,
        metadata: dict[str, Any] | None = None,
        dtype: np.dtype | None = None,
    ) -> StoredArray:
        if type(storage) is not Storage:
            raise UnpicklingError("a tensor has no storage")
        dtype = dtype or storage.dtype or DTYPES["uint8"]
        sizes_and_steps = all(are_sizes(numbers) for numbers in (shape, strides, (offset,)))
        if not sizes_and_steps or len(shape) != len(strides):
            raise UnpicklingError(
                f"the shape, strides and offset of a tensor are no numbers from 0 to 2^48, with at "
                f"most {MOST_AXES} axes"
            )
        if metadata:
            raise UnpicklingError(
                f"a tensor is stored with {', '.join(metadata)}; save a clone of it"
            )
        shape, strides = tuple(shape), tuple(strides)
        start = storage.start + offset * dtype.itemsize
        array = StoredArray(self._file, start, shape, dtype, strides, self._swapped)
        if array.end > storage.end:
            raise UnpicklingError(f"a tensor of shape {list(shape)} goes beyond its storage")
        return array

    def _make_tensor_of_dtype(self, *arguments: Any) -> StoredArray:
        """Makes a tensor whose type comes before the metadata, which may be left out."""
        tensor, (dtype, *metadata) = arguments[:6], arguments[6:]
        given = DTYPES[dtype.full.removeprefix("torch.")]
        return self._make_tensor(*tensor, *metadata, dtype=given)
