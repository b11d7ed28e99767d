"""State dicts that torch saved, read without torch and without running what is pickled.

Such a file is a zip archive: `data.pkl` says which tensors there are, and `data/0`, `data/1`, ...
hold their elements. Before version 1.6 it was a stream (`torch_streams.py`).
"""

import io
import zipfile
from typing import Any

import numpy as np

from big_align.core.errors import WeightFileError, tell_in_a_line
from big_align.weights.arrays import torch_streams
from big_align.weights.arrays.state_dict_pickles import StateDictPickle
from big_align.weights.arrays.stored_arrays import (
    STREAM,
    TAR,
    TORCH,
    BinaryFile,
    StoredArray,
    recognize,
)

WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts keep the state dict."""


class _Archive:
    """The zip archive of a file: where its members are."""

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
        pickles = [name.partition("/") for name in self._members if name.endswith("/data.pkl")]
        folders = [folder for folder, _, rest in pickles if rest == "data.pkl"]
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
        # Before the bytes: 30 bytes of numbers, the name, and padding of variable length.
        numbers = self._file.read(member.header_offset, 30)
        before = 30 + sum(int.from_bytes(numbers[at : at + 2], "little") for at in (26, 28))
        start = member.header_offset + before
        if numbers[:4] != b"PK\x03\x04" or start + member.file_size > self._file.size:
            raise WeightFileError(f"{self._file.path} is damaged: {name} is not where it should be")
        return start, member.file_size

    def read(self, name: str) -> bytes:
        """Returns the bytes of a member."""
        return self._file.read(*self.find(name))

    def find_storage(self, key: str, dtype: np.dtype | None) -> tuple[int, int]:
        """Returns where the elements of a storage begin and end."""
        start, size = self.find(f"data/{key}")
        return start, start + size

    def load(self) -> Any:
        """Returns the tree that was saved, with a `StoredArray` for each tensor."""
        stream, order = io.BytesIO(self.read("data.pkl")), "little"  # all that older torch wrote
        if f"{self._folder}/byteorder" in self._members:
            order = self.read("byteorder").decode().strip()
        return StateDictPickle(stream, self._file, self.find_storage, order).run()


def locate_arrays(file: BinaryFile) -> dict[str, StoredArray]:
    """Finds the tensors of a state dict, even inside a checkpoint, by name.

    The state dict may be under the keys `state_dict` and `model`; anything but tensors is left out.
    """
    checkpoint = _load_tree(file)
    tensors = _find_tensors(checkpoint)
    if not tensors:
        keys = ", ".join(map(repr, checkpoint)) if isinstance(checkpoint, dict) else "no dict"
        raise WeightFileError(
            f"{file.path} has no tensors by name, at the top or below {' or '.join(WRAPPERS)}; "
            f"it holds {keys[:300]}"
        )
    return tensors


def _load_tree(file: BinaryFile) -> Any:
    content, where = recognize(file), ""
    try:
        if content == TORCH:
            where = "in its data.pkl"
            return _Archive(file).load()
        if content == STREAM:
            where = "or truncated"
            return torch_streams.load_tree(file)
    except WeightFileError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise WeightFileError(
            f"{file.path} is damaged, {where}: {tell_in_a_line(error)}"
        ) from error
    if file.size > 512 and file.read(257, 5) == b"ustar":
        raise WeightFileError(
            f"{file.path} is {TAR}; write it again with torch: torch.save(torch.load("
            f"{str(file.path)!r}, weights_only=True), 'weights.pt')"
        )
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
