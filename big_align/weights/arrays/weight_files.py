"""Reads weights of any file or folder as a mapping from names to arrays, and writes them."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from big_align.core.errors import WeightFileError
from big_align.core.whole_files import check_local, name_partial
from big_align.weights.arrays import safetensors_files, torch_files
from big_align.weights.arrays.safetensors_files import write_safetensors
from big_align.weights.arrays.stored_arrays import LONGEST_NAME, BinaryFile, StoredArray, parse_json

FORMATS = {
    ".safetensors": safetensors_files.locate_arrays,
    ".pt": torch_files.locate_arrays,
    ".pth": torch_files.locate_arrays,
    ".bin": torch_files.locate_arrays,
}

INDEX = ".index.json"
"""The ending of a file that says in which shard each array is."""

WRAPPERS = ("module.", "_orig_mod.")
"""What torch's parallel training and its compiler put before the name of every array."""

TIMES_OF_A_FILE, ROOM = 4, 1 << 26
"""Arrays may share elements, and take this many times their file plus this many bytes."""

NAMES_IN_FOLDERS = (  # the first that exists counts
    "model.safetensors",
    "model.safetensors" + INDEX,
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin" + INDEX,
    "open_clip_pytorch_model.bin",
)


class WeightFile(Mapping[str, np.ndarray]):
    """The arrays of a file or of its shards; each is read whenever it is accessed.

    The files are closed at the end of a `with` block.
    """

    def __init__(
        self, path: pathlib.Path, arrays: dict[str, StoredArray], files: contextlib.ExitStack
    ):
        self.path = path
        self.arrays = arrays
        self._files = files

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.arrays  # without reading

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()


def open_weights(path: str | os.PathLike) -> WeightFile:
    """Opens weights; `.arrays[name]` has the shape and the dtype of one, which is read on demand.

    Args:
      path: a file (.safetensors, or .pt, .pth, .bin of torch.save), the index of a file in shards,
        or a folder of transformers or open_clip that has one of them.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        found = choose_file([name for name in NAMES_IN_FOLDERS if (path / name).is_file()])
        if not found:
            known = ", ".join(NAMES_IN_FOLDERS)
            raise WeightFileError(f"the folder {path} has no weights; looked for {known}")
        path = path / found[0]
    with contextlib.ExitStack() as files:
        locate = _locate_in_shards if path.name.endswith(INDEX) else _locate
        arrays = locate(path, files)
        return WeightFile(path, _unwrap(arrays), files.pop_all())


def choose_file(names: Collection[str]) -> list[str]:
    """Returns the one file of weights that is read, of the files in a folder; none if it has none.

    It may be the index of several (`list_shards`).
    """
    return [name for name in NAMES_IN_FOLDERS if name in names][:1]


def list_names(path: pathlib.Path) -> Collection[str]:
    """Returns the names of the arrays in a file of weights; none of a folder or another file."""
    if path.is_dir() or path.suffix not in FORMATS:
        return ()
    with open_weights(path) as weights:
        return weights.arrays.keys()


def _unwrap(arrays: dict[str, StoredArray]) -> dict[str, StoredArray]:
    """Removes the prefixes of wrappers, in any order, as far as every name has them."""
    while arrays and any(all(name.startswith(p) for name in arrays) for p in WRAPPERS):
        arrays = {name.partition(".")[2]: array for name, array in arrays.items()}
    return arrays


def _locate(path: pathlib.Path, files: contextlib.ExitStack) -> dict[str, StoredArray]:
    file = BinaryFile(path)
    files.callback(file.close)
    if path.suffix not in FORMATS:
        raise WeightFileError(f"{path} must be a folder or end in {', '.join(FORMATS)}")
    arrays = FORMATS[path.suffix](file)
    _check_arrays(file, arrays)
    return arrays


def _check_arrays(file: BinaryFile, arrays: Mapping[str, StoredArray]) -> None:
    """Refuses arrays that would take more memory than the file's size explains."""
    for name in arrays:
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise WeightFileError(
                f"{file.path} names an array {name[:50]!r}...; a name is printable and has at most "
                f"{LONGEST_NAME} characters"
            )
    total = sum(max(array.nbytes, array.end - array.start) for array in arrays.values())
    if total > TIMES_OF_A_FILE * file.size + ROOM:
        raise WeightFileError(
            f"{file.path} has {file.size} bytes and describes arrays of {total}: many of them are "
            f"made of the same few elements; save copies of them instead of views"
        )


def _locate_in_shards(path: pathlib.Path, files: contextlib.ExitStack) -> dict[str, StoredArray]:
    index, shards = _read_index(path), {}
    for name, shard in index.items():
        if not (path.parent / shard).is_file():
            raise WeightFileError(f"{path} names the shard {shard}, which is not in {path.parent}")
        if shard not in shards:
            shards[shard] = _locate(path.parent / shard, files)
        if name not in shards[shard]:
            raise WeightFileError(f"{path} says that {name!r} is in {shard}, but it is not there")
    return {name: shards[shard][name] for name, shard in index.items()}


def list_shards(path: pathlib.Path) -> list[str]:
    """Returns the files that an index names, each once."""
    return list(dict.fromkeys(_read_index(path).values()))


def _read_index(path: pathlib.Path) -> dict[str, str]:
    """Reads the shard of each array."""
    with contextlib.closing(BinaryFile(path)) as file:
        index = parse_json(file.read(0, file.size), str(path)).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise WeightFileError(f"{path} has no `weight_map` from names of arrays to shards")
    for name, shard in index.items():
        if not isinstance(shard, str) or pathlib.PurePath(shard).name != shard:
            raise WeightFileError(f"{path}: {name!r} is in {shard!r}, which is no name of a file")
    return index


def write_folder(path: str | os.PathLike, files: Mapping[str, Any]) -> None:
    """Writes a folder, which must be empty or not exist, completely or not at all.

    Args:
      path: the folder.
      files: by name ("a" or "folder/a"), text, bytes or a value for JSON, or a function that makes
        it of the folder's absolute path; for .safetensors the arrays, as `write_safetensors` takes
        them.
    """
    check_local(path)
    path = pathlib.Path(path).expanduser().resolve()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise WeightFileError(f"{path} exists; give a folder that is empty or does not exist")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = name_partial(path)
    try:
        partial.mkdir()
        for name, content in files.items():
            (partial / name).parent.mkdir(exist_ok=True)
            content = content(path) if callable(content) else content
            if name.endswith(".safetensors"):
                write_safetensors(partial / name, content)
            elif isinstance(content, bytes):
                (partial / name).write_bytes(content)
            else:
                text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
                (partial / name).write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
