"""The pickles of torch's state dicts, read without running what is pickled.

A pickle is a program that may call any function by its name; here it gets only the few names that a
state dict needs, each as an inert stand-in, and any other name ends the reading.
"""

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from big_align.errors import WeightFileError
from big_align.interop.arrays.stored_arrays import DTYPES, BinaryFile, StoredArray

STORAGES = {  # what a storage holds; an untyped one leaves it to its tensors
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
    """The elements of one or more tensors: where they lie in the file, from byte to byte."""

    start: int
    end: int
    dtype: np.dtype | None


class Name(NamedTuple):
    """Stands for what a pickle names; can be called where the original is.

    A tuple, as it has no attributes that the pickle could set.
    """

    full: str
    call: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.call is None:
            raise pickle.UnpicklingError(f"{self.full} is called")
        return self.call(*arguments)


class Ordered(dict):
    """Stands for OrderedDict; drops the attributes that torch gives to state dicts."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class StateDictUnpickler(pickle.Unpickler):
    """Makes the tree of a checkpoint with a `StoredArray` for each tensor.

    Args:
      stream: what is pickled.
      file: where the elements are.
      find: makes of a storage's key and of its type (None for bytes) where its elements begin and
        end.
      byte_order: of the machine that saved, "little" or "big".
    """

    def __init__(
        self,
        stream: io.BufferedIOBase,
        file: BinaryFile,
        find: Callable[[str, np.dtype | None], tuple[int, int]],
        byte_order: str,
    ):
        super().__init__(stream)
        self._file = file
        self._find = find
        self._swapped = byte_order != sys.byteorder
        inert = [*STORAGES, *(f"torch.{name}" for name in DTYPES)]
        self._known = {name: Name(name) for name in inert} | {
            name: Name(name, call)
            for name, call in {
                "collections.OrderedDict": Ordered,
                "torch.Size": tuple,
                "torch.device": lambda *description: description,
                "torch._utils._rebuild_tensor_v2": self._make_tensor,
                "torch._utils._rebuild_tensor_v3": self._make_tensor_of_dtype,
                "torch._utils._rebuild_parameter": lambda data, *_: data,
                "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
            }.items()
        }

    def find_class(self, module: str, name: str) -> Name:
        full = f"{module}.{name}"
        if full not in self._known:
            raise WeightFileError(
                f"{self._file.path} asks for {full}, which a state dict does not need; it was not "
                f"run. If you trust the file, save the state dict by itself with torch: "
                f"torch.save(model.state_dict(), ...)"
            )
        return self._known[full]

    def persistent_load(self, pid: Any) -> Storage:
        kind, name, key, _, _, *views = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"{kind!r} is no storage")
        dtype = STORAGES[name.full]
        start, end = self._find(key, dtype)
        if views and views[0] is not None:  # torch before 0.4 had storages within storages
            _, offset, count = views[0]
            size = dtype.itemsize if dtype else 1
            if min(offset, count) < 0 or start + (offset + count) * size > end:
                raise pickle.UnpicklingError("a storage goes beyond the one that it is part of")
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
        dtype = dtype or storage.dtype or DTYPES["uint8"]
        shape, strides = tuple(shape), tuple(strides)
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise pickle.UnpicklingError(f"a tensor has shape {shape} and strides {strides}")
        if metadata:
            raise pickle.UnpicklingError(f"a tensor is stored with {metadata}; save a clone of it")
        start = storage.start + offset * dtype.itemsize
        array = StoredArray(self._file, start, shape, dtype, strides, self._swapped)
        if array.end > storage.end:
            raise pickle.UnpicklingError(f"a tensor of shape {list(shape)} goes beyond its storage")
        return array

    def _make_tensor_of_dtype(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool,
        hooks: Any,
        dtype: Name,
        metadata: dict[str, Any] | None = None,
    ) -> StoredArray:
        given = DTYPES[dtype.full.removeprefix("torch.")]
        return self._make_tensor(
            storage, offset, shape, strides, requires_grad, hooks, metadata, given
        )
