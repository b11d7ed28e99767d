"""Embeddings that were made and are in no generation yet: they survive the end of the process."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from big_align.whole_files import naming

Record = list[Any]
"""What identifies a row: [name, signature], or [text]."""


class PendingRows:
    """Rows that are appended to three files; a row counts once its line in the last is complete.

    So a process can be killed at any time. The next one cuts off what is incomplete.

    Args:
      folder: the folder of the index.
      kind: the beginning of the names of the files.
      dim: the width of the embeddings.
      dtype: the type of what is stored.

    Attributes:
      records: the records of the rows, in their order.
    """

    def __init__(self, folder: pathlib.Path, kind: str, dim: int, dtype: str):
        names = ("vectors", "bytes", "rows")
        self._paths = [folder / f"pending-{kind}.{name}" for name in names]
        self._dim, self._dtype = dim, np.dtype(dtype)
        self.records: list[Record] = []
        self._ends = [0]
        for path in self._paths:
            path.touch()
        self._recover()

    def _recover(self) -> None:
        """Reads the rows that are complete, and cuts off the rest."""
        vectors, blobs, rows = self._paths
        have, room = vectors.stat().st_size // self._row_bytes, blobs.stat().st_size
        size = 0
        for line in rows.read_bytes().splitlines(keepends=True):
            try:
                record, end = json.loads(line) if line.endswith(b"\n") else (None, room + 1)
            except ValueError:
                break
            if end > room or len(self.records) == have:
                break
            self.records.append(record)
            self._ends.append(end)
            size += len(line)
        os.truncate(vectors, len(self.records) * self._row_bytes)
        os.truncate(blobs, self._ends[-1])
        os.truncate(rows, size)

    @property
    def _row_bytes(self) -> int:
        return self._dim * self._dtype.itemsize

    def append(
        self,
        records: Sequence[Record],
        values: Float[np.ndarray, "n d"],
        blobs: Sequence[bytes] | None = None,
    ) -> None:
        """Stores rows.

        Args:
          records: what identifies each row.
          values: the embeddings.
          blobs: bytes that go with each; None for nothing.

        Raises:
          OSError: a file cannot be written; the message names it.
        """
        blobs = blobs or [b""] * len(records)
        ends = self._ends[-1] + np.cumsum([len(blob) for blob in blobs])
        lines = [json.dumps([r, int(e)]) + "\n" for r, e in zip(records, ends, strict=True)]
        contents = values.astype(self._dtype).tobytes(), b"".join(blobs), "".join(lines).encode()
        for path, content in zip(self._paths, contents, strict=True):  # the lines come last
            with naming(path), path.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self.records += records
        self._ends += ends.tolist()

    def read_vectors(self) -> Float[np.ndarray, "n d"]:
        """Returns the embeddings, memory-mapped."""
        shape = len(self.records), self._dim
        if not self.records:
            return np.zeros(shape, self._dtype)
        return np.memmap(self._paths[0], self._dtype, "r", shape=shape)

    def read_blobs(self) -> tuple[np.ndarray, list[int]]:
        """Returns the bytes of all rows, concatenated and memory-mapped, and where each ends."""
        if not self._ends[-1]:
            return np.zeros(0, np.uint8), self._ends[1:]
        return np.memmap(self._paths[1], np.uint8, "r"), self._ends[1:]

    def remove(self) -> None:
        """Removes the files."""
        for path in reversed(self._paths):
            path.unlink(missing_ok=True)
