"""State dicts that torch saved, read without torch and without running what is pickled.

Such a file is a zip archive: `data.pkl` says which tensors there are, `data/0`, `data/1`, ... hold
their elements. A pickle is a program that may call any function by its name; here it gets only the
few names that a state dict needs, each as an inert stand-in, and any other name ends the reading.
"""

import io
import pickle
import sys
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from big_align.errors import WeightFileError
from big_align.interop.arrays.stored_arrays import (
    DTYPES,
    LEGACY,
    TORCH,
    BinaryFile,
    StoredArray,
    recognize,
)

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

WRAPPERS = ("state_dict", "model")
"""Keys below which training scripts keep the state dict."""


class _Storage(NamedTuple):
    """The elements of one or more tensors: where they lie in the file, from byte to byte."""

    start: int
    end: int
    dtype: np.dtype | None


class _Name(NamedTuple):
    """Stands for what a pickle names; can be called where the original is.

    A tuple, as it has no attributes that the pickle could set.
    """

    full: str
    call: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.call is None:
            raise pickle.UnpicklingError(f"{self.full} is called")
        return self.call(*arguments)


class _Ordered(dict):
    """Stands for OrderedDict; drops the attributes that torch gives to state dicts."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Makes the tree of a checkpoint with a `StoredArray` for each tensor."""

    def __init__(self, file: BinaryFile, archive: "_Archive"):
        super().__init__(io.BytesIO(archive.read("data.pkl")))
        self._file = file
        self._archive = archive
        self._swapped = archive.byte_order != sys.byteorder
        inert = [*STORAGES, *(f"torch.{name}" for name in DTYPES)]
        self._known = {name: _Name(name) for name in inert} | {
            name: _Name(name, call)
            for name, call in {
                "collections.OrderedDict": _Ordered,
                "torch.Size": tuple,
                "torch.device": lambda *description: description,
                "torch._utils._rebuild_tensor_v2": self._make_tensor,
                "torch._utils._rebuild_tensor_v3": self._make_tensor_of_dtype,
                "torch._utils._rebuild_parameter": lambda data, *_: data,
                "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
            }.items()
        }

    def find_class(self, module: str, name: str) -> _Name:
        full = f"{module}.{name}"
        if full not in self._known:
            raise WeightFileError(
                f"{self._file.path} asks for {full}, which a state dict does not need; it was not "
                f"run. If you trust the file, save the state dict by itself with torch: "
                f"torch.save(model.state_dict(), ...)"
            )
        return self._known[full]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, name, key, _, _ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"{kind!r} is no storage")
        start, size = self._archive.find(f"data/{key}")
        return _Storage(start, start + size, STORAGES[name.full])

    def _make_tensor(
        self,
        storage: _Storage,
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
        storage: _Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        requires_grad: bool,
        hooks: Any,
        dtype: _Name,
        metadata: dict[str, Any] | None = None,
    ) -> StoredArray:
        given = DTYPES[dtype.full.removeprefix("torch.")]
        return self._make_tensor(
            storage, offset, shape, strides, requires_grad, hooks, metadata, given
        )


class _Archive:
    """The zip archive of a file: where its members lie.

    Raises:
      WeightFileError: it is truncated, TorchScript, or was not written by torch.
    """

    def __init__(self, file: BinaryFile):
        self._file = file
        try:
            with zipfile.ZipFile(file.path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise WeightFileError(
                f"{file.path} is truncated or damaged ({error}); copy or download it again"
            ) from error
        self._members = {member.filename: member for member in members}
        if len(self._members) < len(members):
            raise WeightFileError(f"{file.path} is a zip archive with several files of one name")
        names = [name.split("/") for name in self._members]
        folders = [parts[0] for parts in names if len(parts) == 2 and parts[1] == "data.pkl"]
        if len(folders) != 1:
            raise WeightFileError(
                f"{file.path} is a zip archive, but not one of torch.save: that has one data.pkl"
            )
        self._folder = folders[0]
        if f"{self._folder}/constants.pkl" in self._members:
            raise WeightFileError(
                f"{file.path} is a TorchScript archive; take its state dict with torch: "
                f"torch.save(torch.jit.load({str(file.path)!r}).state_dict(), 'weights.pt')"
            )

    @property
    def byte_order(self) -> str:
        """The order of bytes in the storages: "little" or "big"."""
        if f"{self._folder}/byteorder" not in self._members:
            return "little"  # older torch, which wrote no other
        return self.read("byteorder").decode().strip()

    def find(self, name: str) -> tuple[int, int]:
        """Returns where the bytes of a member begin, and how many there are."""
        member = self._members.get(f"{self._folder}/{name}")
        if member is None:
            raise WeightFileError(f"{self._file.path} is damaged: it lacks its file {name}")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise WeightFileError(
                f"{self._file.path} was compressed after torch had written it; unpack it and zip "
                f"it again with `zip -0 -r`"
            )
        # In front of the bytes: 30 bytes of numbers, the name, and padding of its own length.
        numbers = self._file.read(member.header_offset, 30)
        before = 30 + sum(int.from_bytes(numbers[at : at + 2], "little") for at in (26, 28))
        start = member.header_offset + before
        if numbers[:4] != b"PK\x03\x04" or start + member.file_size > self._file.size:
            raise WeightFileError(f"{self._file.path} is damaged: {name} is not where it should be")
        return start, member.file_size

    def read(self, name: str) -> bytes:
        """Returns the bytes of a member."""
        return self._file.read(*self.find(name))


def locate_arrays(file: BinaryFile) -> dict[str, StoredArray]:
    """Finds the tensors of a state dict, also of one within a checkpoint.

    Below the keys `state_dict` and `model` the state dict is looked for; `module.` in front of all
    names, which parallel training leaves there, is taken away; what is no tensor is left out.

    Returns:
      Where each array lies, by name.

    Raises:
      WeightFileError: the file is of another kind, damaged, asks for code, or has no tensors.
    """
    _check_kind(file)
    try:
        checkpoint = _Unpickler(file, _Archive(file)).load()
    except WeightFileError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise WeightFileError(f"{file.path} is damaged, in its data.pkl: {error!r}") from error
    tensors = _find_tensors(checkpoint)
    if not tensors:
        keys = ", ".join(map(repr, checkpoint)) if isinstance(checkpoint, dict) else "no dict"
        raise WeightFileError(
            f"{file.path} has no tensors by name, at the top or below {' or '.join(WRAPPERS)}; "
            f"it holds {keys[:300]}"
        )
    if all(name.startswith("module.") for name in tensors):
        return {name.removeprefix("module."): array for name, array in tensors.items()}
    return tensors


def _check_kind(file: BinaryFile) -> None:
    content = recognize(file)
    if content == LEGACY or file.size > 512 and file.read(257, 5) == b"ustar":
        raise WeightFileError(
            f"{file.path} is {LEGACY}; write it anew with torch: torch.save(torch.load("
            f"{str(file.path)!r}, weights_only=True), 'weights.pt')"
        )
    if content != TORCH:
        raise WeightFileError(f"{file.path} is not {TORCH}: it is {content}")


def _find_tensors(checkpoint: Any) -> dict[str, StoredArray]:
    for _ in range(len(WRAPPERS)):
        if isinstance(checkpoint, dict):
            inner = (checkpoint.get(key) for key in WRAPPERS)
            checkpoint = next((tree for tree in inner if isinstance(tree, dict)), checkpoint)
    if not isinstance(checkpoint, dict):
        return {}
    return {
        name: value
        for name, value in checkpoint.items()
        if isinstance(name, str) and isinstance(value, StoredArray)
    }
