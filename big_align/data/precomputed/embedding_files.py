"""Folders of embeddings, captions' features and clusters (`shard_files`), memory-mapped."""

import functools
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.core.regular_files import map_array, read_regular
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS, INDEX, Shard
from big_align.data.shard_offsets import ShardOffsets

CENTERS = "centers.npy"
OPEN_FILES = 128


class ShardFolder:
    """The common part of folders of embeddings and of clusters; opening one checks everything.

    Its index must have the fields, and the names of the files with arrays have the ending.
    """

    def __init__(self, path: str | os.PathLike, fields: Sequence[str], ending: str):
        if "://" in os.fspath(path):
            raise UserError(
                f"{os.fspath(path)}: arrays are memory-mapped; copy the folder to a disk that all "
                "processes see, and name that (`aws s3 sync`, `gcloud storage rsync`)"
            )
        self.path = pathlib.Path(path)
        self.index = shard_files.read_index(self.path, ("shards", *fields))
        self._ending = ending
        self._open = functools.lru_cache(maxsize=OPEN_FILES)(self._open_array)
        self._select(shard_files.read_shards(self.path, self.index["shards"]))
        if missing := shard_files.list_missing(self.path, ending, self.shards):
            raise UserError(
                f"{self.path} lacks {len(missing)} of {len(self.shards)} shards, "
                f"{missing[0].file}{ending} the first: the command that made it continues"
            )

    def _select(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self._offsets = ShardOffsets(np.array([shard.count for shard in shards], np.int64))
        self.count = self._offsets.count

    def array(self, shard: Shard) -> np.ndarray:
        """Returns the rows of a shard, memory-mapped."""
        return self._open(shard)

    def _open_array(self, shard: Shard) -> np.ndarray:
        rows = map_array(self.path / (shard.file + self._ending))
        return rows.view(np.ndarray)  # taking rows of a memmap is slow

    def _check(self, dtype: str, *width: int) -> None:
        """Checks every array against the index, and the keys against the arrays."""
        for shard in self.shards:
            if not shard.count:
                continue
            rows, wanted = self.array(shard), (shard.count, *width)
            if rows.shape != wanted or rows.dtype != dtype:
                raise UserError(
                    f"{self.path / shard.file}{self._ending} is {rows.dtype} {list(rows.shape)}, "
                    f"but {INDEX} says {dtype} {list(wanted)}"
                )
            keys = self.key_lines(shard).count(b"\n")
            if keys != shard.count:
                raise UserError(
                    f"{self.path / shard.file}{shard_files.KEYS} has {keys} lines, but the shard "
                    f"{shard.count} examples"
                )

    def key_lines(self, shard: Shard) -> bytes:
        """Reads the file of the keys of a shard."""
        path = self.path / (shard.file + shard_files.KEYS)
        if not path.is_file():
            raise UserError(f"{path} is missing")
        return read_regular(path)

    def keys(self, shard: Shard) -> list[str]:
        """Reads the keys of a shard; an example that could not be read has an empty key."""
        return self.key_lines(shard).decode("utf-8", "surrogateescape").split("\n")[:-1]

    def locate(self, number: int) -> tuple[Shard, int]:
        """Returns the shard of a row of the whole folder, and its index there."""
        shard, index = self._offsets.locate_one(number)
        return self.shards[shard], index

    def name(self, number: int) -> str:
        """Names an example, as in `train-00003.tar: 00000042`."""
        shard, index = self.locate(number)
        return f"{shard.name}: {self.keys(shard)[index]}"


class EmbeddingFolder(ShardFolder):
    """The embeddings that big_align.tools.embed wrote, as if they were one array [count dim].

    `absent` counts rows of zeros, for examples that could not be read.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__(path, ("dim", "dtype"), EMBEDDINGS)
        self.dim, self.dtype = int(self.index["dim"]), self.index["dtype"]
        self._check(self.dtype, self.dim)
        lines = (self.key_lines(shard) for shard in self.shards if shard.count)
        self.absent = sum(len(re.findall(rb"\n(?=\n)", b"\n" + keys)) for keys in lines)

    def read(self, first: int, end: int) -> Float[np.ndarray, "n d"]:
        """Reads rows as they are stored."""
        pieces = []
        while first < end:
            shard, index = self.locate(first)
            piece = self.array(shard)[index : index + end - first]
            self._check_finite(shard, np.arange(index, index + len(piece)), piece)
            pieces.append(piece)
            first += len(piece)
        return np.concatenate(pieces) if pieces else np.zeros((0, self.dim), self.dtype)

    def take(self, numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """Reads chosen rows as they are stored, shard by shard."""
        rows = np.zeros((len(numbers), self.dim), self.dtype)
        shards, indexes = self._offsets.locate(numbers)
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            rows[chosen] = self.array(self.shards[shard])[indexes[chosen]]
            self._check_finite(self.shards[shard], indexes[chosen], rows[chosen])
        return rows

    def _check_finite(
        self, shard: Shard, indexes: Int[np.ndarray, " n"], rows: Float[np.ndarray, "n d"]
    ) -> None:
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise UserError(
                f"{self.path / shard.file}{EMBEDDINGS}: row {indexes[int(np.argmin(finite))]} is "
                "not finite: embed the data again, with a model whose weights are"
            )

    def part(self, shards: Sequence[Shard]) -> "EmbeddingFolder":
        """Returns a view of some of the shards."""
        view = object.__new__(EmbeddingFolder)
        view.__dict__ = dict(self.__dict__)
        view._select(shards)
        return view


class CaptionFolder(ShardFolder):
    """The features of all captions of every example; `array(shard)` is [n captions dim].

    Caption i of an example is at place i; places beyond its captions are zero.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__(path, ("captions", "dim", "dtype"), shard_files.CAPTIONS)
        self.captions, self.dim = int(self.index["captions"]), int(self.index["dim"])
        self._check(self.index["dtype"], self.captions, self.dim)


class ClusterFolder(ShardFolder):
    """The clusters that big_align.tools.cluster wrote; `array(shard)` is int32 [n p], -1 for none.

    The nearest of the p = `labels_per_image` come first; `centers`, float32 [k d] of unit length,
    are memory-mapped.
    """

    def __init__(self, path: str | os.PathLike):
        super().__init__(path, ("k", "dim", "labels_per_image"), shard_files.CLUSTERS)
        self.k, self.labels_per_image = self.index["k"], self.index["labels_per_image"]
        self._check("int32", self.labels_per_image)
        self.centers = read_centers(self.path, self.k, self.index["dim"])


def read_centers(folder: pathlib.Path, k: int, dim: int) -> Float[np.ndarray, "k d"]:
    """Opens the centers of a folder of clusters."""
    path = folder / CENTERS
    centers = map_array(path)
    if centers.shape != (k, dim) or centers.dtype != np.float32:
        raise UserError(
            f"{path} is {centers.dtype} {list(centers.shape)}, but {INDEX} says float32 {[k, dim]}"
        )
    return centers
