"""The loader of the training data: batches filled from one stream of rows or from several."""

import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data.loading import parallel
from big_align.data.loading.mixture import interleave
from big_align.data.loading.parallel import HostBatch
from big_align.data.loading.rows import RowStream
from big_align.errors import UserError

REMEDIES = {
    "image": "the transform or views_per_image",
    "text": "the tokenizer or captions_per_image",
    "text_mask": "the tokenizer or captions_per_image",
    "tags": "max_tags",
    "true_tags": "max_tags or truth",
}
"""What gives the arrays of a batch their shape; the others are precomputed."""


class TrainLoader:
    """The endless training stream: the batch of any step, or all batches from a step on.

    Every batch has the rows of one stream, or set numbers of rows of several: the global batch of
    each is laid into the rows of the whole by `interleave`. So a batch is a pure function of the
    seeds and the step, each stream goes through its own epochs, and the split over processes
    changes nothing.

    Args:
      streams: one, or several by name; the rows of each in a batch are its `batch_size`. They are
        closed with the loader.
      rows: the rows of the global batch that this process makes, ascending; None is all.
      num_threads: threads that fill batches; None is one a core, or two an image process.
      prefetch: batches that are filled ahead; each is held in memory.

    Attributes:
      batch_size: rows of the global batch.
      num_examples: examples of all streams.
      saved: what a checkpoint holds of it beside the step: nothing.

    Raises:
      UserError: streams differ in the shape of a field.
      ValueError: a value is out of range.
    """

    saved: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(
        self,
        streams: RowStream | Mapping[str, RowStream],
        rows: Int[np.ndarray, " r"] | None = None,
        num_threads: int | None = None,
        prefetch: int = 4,
    ):
        self._streams = dict(streams) if isinstance(streams, Mapping) else {"": streams}
        parallel.check_at_least(1, streams=len(self._streams), prefetch=prefetch)
        counts = {name: stream.examples.batch_size for name, stream in self._streams.items()}
        self.batch_size = sum(counts.values())
        self.num_examples = sum(stream.examples.num_examples for stream in self._streams.values())
        self._rows = parallel.check_rows(rows, self.batch_size)
        self._parts, self._stream_rows = interleave(counts)
        self._work = self._group_rows()
        self._check_shapes()
        self._prefetch = prefetch
        processes = sum(stream.num_processes for stream in self._streams.values())
        self._workers = parallel.Workers(num_threads or 2 * processes or None)

    @property
    def steps_per_epoch(self) -> float:
        """Global batches that hold as many examples as there are; see `epochs` for each stream."""
        return self.num_examples / self.batch_size

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return sum(stream.examples.broken for stream in self._streams.values())

    @property
    def shards(self) -> dict[str, str]:
        """What each shard of each stream is called and holds, by its number."""
        return {
            f"{name}, shard {number}" if name else f"shard {number}": shard
            for name, stream in self._streams.items()
            for number, shard in enumerate(stream.examples.shards)
        }

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how often each stream has been gone through before a step."""
        return {
            f"epoch/{name}" if name else "epoch": step / stream.examples.steps_per_epoch
            for name, stream in self._streams.items()
        }

    def batch(self, step: int) -> HostBatch:
        """Makes this process's rows of the global batch of a step."""
        return self._start(step).result()

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on, filled ahead in threads."""
        steps = iter(range(start_step, np.iinfo(np.int64).max))
        return parallel.take_ahead(map(self._start, steps), self._prefetch + 1)

    def close(self) -> None:
        """Ends threads and processes; the loader cannot be used again."""
        self._workers.close()
        for stream in self._streams.values():
            stream.close()

    def __enter__(self) -> "TrainLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, step: int) -> parallel.Filling:
        def job(batch: HostBatch, begin: int, end: int) -> None:
            here = self._work[begin:end]
            for number, stream in enumerate(self._streams.values()):
                rows = here[self._parts[self._rows[here]] == number]
                if len(rows):
                    stream.fill(batch, step, self._stream_rows[self._rows[rows]], rows)

        size, row = len(self._rows), next(iter(self._streams.values())).row
        batch = {name: np.empty((size, *shape), dtype) for name, (shape, dtype) in row.items()}
        return self._workers.fill(batch | {"mask": np.ones(size, bool)}, size, job)

    def _group_rows(self) -> Int[np.ndarray, " r"]:
        """Orders this process's rows for the threads: jobs are mostly of one stream, in turns.

        A job of one stream costs what it costs with that stream alone; turns keep the image
        processes of all streams busy.
        """
        rows = np.arange(len(self._rows))
        turns = rows // (parallel.CHUNK_MAX * len(self._streams))
        return np.lexsort((rows, self._parts[self._rows], turns))

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
