"""The loader of the training data: batches filled from one stream of rows or from several."""

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Int

from big_align.core.errors import UserError, check_at_least
from big_align.data.examples import describe_shards
from big_align.data.loading import parallel
from big_align.data.loading.mixture import interleave
from big_align.data.loading.rows import RowStream
from big_align.data.workers.batch_memory import BatchLayout, BatchMemory, HostBatch, Row
from big_align.data.workers.processes import RowProcesses


class BatchFiller:
    """Fills rows of batches: a pure function of the seeds and the step.

    `interleave` spreads the global batches of the streams over the rows of the whole, of which this
    process makes some in ascending order, or all.
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
        """Writes one job's rows of the batch of a step, from `begin` to `end` by `_group_rows`."""
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


REMEDIES = {
    "image": "the transform or views_per_image",
    "text": "the tokenizer or captions_per_image",
    "text_mask": "the tokenizer or captions_per_image",
    "tags": "max_tags",
    "true_tags": "max_tags or truth",
}
"""The settings that give the arrays of a batch their shape; the others are precomputed."""


class TrainLoader(contextlib.AbstractContextManager):
    """The endless training stream: the batch of any step, or all batches from a step on.

    Every batch has the rows of one stream, or fixed numbers of rows of several (`BatchFiller`). So
    a batch is a pure function of the seeds and the step, each stream goes through its own epochs,
    and the split over processes, on one machine or on several, changes nothing.

    A batch stays unchanged for as long as anything refers to one of its arrays; then its memory is
    reused.

    Args:
      streams: one, or several by name; each contributes `batch_size` rows to a batch.
      rows: the rows of the global batch that this process makes, ascending; None is all.
      num_threads: threads that fill batches, in each process; None is one per core, or one in each
        process if several fill batches.
      prefetch: batches that are filled ahead; each is held in memory.
      num_processes: processes that fill batches; with 0 only the threads of this one do. None
        depends on the machine: 0 up to eight cores, or if the streams cannot be sent to processes,
        else one per core.

    Attributes:
      batch_size: rows of the global batch.
      num_examples: examples of all streams.
      saved: what a checkpoint holds of it besides the step: nothing.
      num_threads: threads of each process.
      num_processes: processes that fill batches; 0 if only this one does.
    """

    saved: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(
        self,
        streams: RowStream | Mapping[str, RowStream],
        rows: Int[np.ndarray, " r"] | None = None,
        num_threads: int | None = None,
        prefetch: int = 4,
        num_processes: int | None = None,
    ):
        self._streams = dict(streams) if isinstance(streams, Mapping) else {"": streams}
        least_1 = {"streams": len(self._streams), "prefetch": prefetch, "num_threads": num_threads}
        check_at_least(1, **least_1)
        check_at_least(0, num_processes=num_processes)
        self._check_shapes()
        self._filler = BatchFiller(self._streams, rows)
        self.batch_size = self._filler.batch_size
        self.num_examples = sum(stream.examples.num_examples for stream in self._streams.values())
        self._layout = BatchLayout.of(self._filler.row, self._filler.size)
        self._prefetch = prefetch
        self._processes = self._start_processes(num_threads, num_processes)
        count = self.num_processes or 1
        least = parallel.CHUNK_MIN if self.num_processes else 1
        self._workers = parallel.Workers(count * self.num_threads, least)

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return sum(stream.examples.broken for stream in self._streams.values())

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that fill batches."""
        return self._processes.pids if self._processes else []

    @property
    def sizes(self) -> dict[str, str]:
        """What each stream says of its size: it differs if the order of examples does."""
        return {name: stream.examples.size for name, stream in self._streams.items()}

    @property
    def shards(self) -> dict[str, str]:
        """What each shard of each stream is called and holds, by its number."""
        return {
            f"{name}, shard {number}" if name else f"shard {number}": shard
            for name, stream in self._streams.items()
            for number, shard in enumerate(describe_shards(stream.examples.source))
        }

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how many times each stream has been passed through before a step."""
        return {
            f"epoch/{name}" if name else "epoch": step / stream.examples.steps_per_epoch
            for name, stream in self._streams.items()
        }

    def batch(self, step: int) -> HostBatch:
        """Makes this process's rows of the global batch of a step."""
        return self._start(step).result()

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on, filled ahead."""
        steps = iter(range(start_step, np.iinfo(np.int64).max))
        return parallel.take_ahead(map(self._start, steps), self._prefetch + 1)

    def list_examples(self, step: int) -> list[str]:
        """Names the examples of the global batch of a step, row by row.

        An example that only other processes know to be broken is named in place of its substitute.
        """
        return self._filler.list_names(step)

    def close(self) -> None:
        """Ends threads and processes; the loader cannot be used again, but its batches can."""
        self._workers.close()
        if self._processes:
            self._processes.close()
        self._memory.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, step: int) -> parallel.Filling:
        number, batch = self._memory.acquire()

        def job(batch: HostBatch, begin: int, end: int) -> None:
            if self._processes:
                self._processes.fill(number, step, begin, end)
            else:
                self._filler.fill(batch, step, begin, end)

        return self._workers.fill(batch, self._filler.size, job)

    def _start_processes(
        self, num_threads: int | None, num_processes: int | None
    ) -> RowProcesses | None:
        size = self._filler.size
        self.num_threads, self.num_processes = parallel.choose_workers(
            num_threads, num_processes, size
        )
        keep = self._prefetch + 2  # those that are filled ahead, and the one in use
        if self.num_processes:
            self._memory = BatchMemory(self._layout, keep, shared=True)
            try:
                counts = self.num_processes, self.num_threads
                return RowProcesses(self._filler, self._memory, *counts, self._filler.staying)
            except UserError as error:
                self._memory.close()
                if num_processes is not None:
                    raise UserError(
                        f"num_processes = {num_processes}: {error}; num_processes = 0 is threads"
                    ) from error
                logging.warning("threads fill the batches: %s", error)
                self.num_threads, self.num_processes = parallel.choose_workers(num_threads, 0, size)
        self._memory = BatchMemory(self._layout, keep, shared=False)
        return None

    def _check_shapes(self) -> None:
        (one, first), *others = self._streams.items()
        for other, stream in others:
            for name in sorted(first.row.keys() | stream.row.keys()):
                here, there = (x.row.get(name, ("none at all",))[0] for x in (first, stream))
                if here != there:
                    raise UserError(
                        f"the shape of {name} is {here} in {one} and {there} in {other}; all parts "
                        f"must have one: change {REMEDIES.get(name, 'precomputed')} of one of them"
                    )
