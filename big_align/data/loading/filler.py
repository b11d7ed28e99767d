"""Fills the rows of a batch from the streams, here or in another process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data.loading import parallel
from big_align.data.loading.mixture import interleave
from big_align.data.loading.rows import RowStream
from big_align.data.workers.batch_memory import HostBatch, Row


class BatchFiller:
    """Fills rows of batches: a pure function of the seeds and the step.

    `interleave` spreads the global batch of each stream over the rows of the whole.

    Args:
      streams: the streams by name; each contributes `batch_size` rows to a batch.
      rows: the rows of the global batch that this process makes, ascending; None is all.

    Attributes:
      batch_size: rows of the global batch.
      size: rows that this process makes.
      row: the shape and the type of each array.
      staying: what processes call in the parent: the tokenizers, and the counts of broken examples.

    Raises:
      ValueError: a value is out of range.
    """

    def __init__(self, streams: Mapping[str, RowStream], rows: Int[np.ndarray, " r"] | None = None):
        counts = {name: stream.examples.batch_size for name, stream in streams.items()}
        self.batch_size = sum(counts.values())
        self._streams = list(streams.values())
        self._rows = parallel.check_rows(rows, self.batch_size)
        self.size = len(self._rows)
        self._parts, self._stream_rows = interleave(counts)
        self._work = self._group_rows()
        self.row: Row = {**self._streams[0].row, "mask": ((), np.dtype(bool))}

    @property
    def staying(self) -> list[Any]:
        """What processes call in the parent."""
        return [each for stream in self._streams for each in stream.staying]

    def fill(self, batch: HostBatch, step: int, begin: int, end: int) -> None:
        """Writes one job's rows of the batch of a step.

        Args:
          batch: arrays as `row` describes them.
          step: the step of the batch.
          begin: where the job begins, counted in the order of `_group_rows`.
          end: where it ends, likewise.
        """
        here = self._work[begin:end]
        for number, stream in enumerate(self._streams):
            rows = here[self._parts[self._rows[here]] == number]
            if len(rows):
                stream.fill(batch, step, self._stream_rows[self._rows[rows]], rows)
        batch["mask"][here] = True

    def list_names(self, step: int) -> list[str]:
        """Names the examples of the global batch of a step, row by row."""
        names = [""] * self.batch_size
        for number, stream in enumerate(self._streams):
            (rows,) = np.nonzero(self._parts == number)
            found = stream.examples.list_names(step, self._stream_rows[rows])
            for row, name in zip(rows.tolist(), found, strict=True):
                names[row] = name
        return names

    def _group_rows(self) -> Int[np.ndarray, " r"]:
        """Orders this process's rows so that most jobs have rows of one stream, taking turns.

        A job of one stream costs no more than with that stream alone; turns keep all streams
        equally far along.
        """
        rows = np.arange(len(self._rows))
        turns = rows // (parallel.CHUNK_MAX * len(self._streams))
        return np.lexsort((rows, self._parts[self._rows], turns))
