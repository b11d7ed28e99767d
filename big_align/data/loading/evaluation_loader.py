"""The loader of an evaluation set."""

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int, Int32

from big_align.core.errors import BrokenDataError, UserError, check_at_least
from big_align.data import boundary, examples
from big_align.data.images import image_ops
from big_align.data.loading import broken, parallel
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.workers.batch_memory import HostBatch

Numbers = range | Int[np.ndarray, " n"]
"""Of some examples of a source."""


class EvalLoader(contextlib.AbstractContextManager):
    """A finite set in its own order: its texts at once, its images in batches.

    Every process makes its rows of every batch, and all make the same number of batches.

    Args:
      source: the examples.
      transform: image operations that end in one size.
      batch_size: examples of the global batch.
      rows: the rows of a batch that this process makes, ascending; None is all.
      max_broken_fraction: the fraction of broken examples above which the run stops.
      num_threads: None is one per core.
      prefetch: batches that are filled ahead.
      image_shape: the shape of the images; None takes that of the first readable one.
    """

    def __init__(
        self,
        source: examples.Source,
        transform: str,
        batch_size: int,
        rows: Int[np.ndarray, " r"] | None = None,
        max_broken_fraction: float = 0.01,
        num_threads: int | None = None,
        prefetch: int = 2,
        image_shape: tuple[int, ...] | None = None,
    ):
        check_at_least(1, prefetch=prefetch, batch_size=batch_size)
        self._offsets = ShardOffsets(source.shard_sizes)
        self.num_examples = self._offsets.count
        self._rows = parallel.check_rows(rows, batch_size)
        self._source = source
        self._transform = image_ops.Transform(transform)
        self._batch_size = batch_size
        self._tally = broken.BrokenTally(source, max_broken_fraction)
        self._workers = parallel.Workers(num_threads)
        self._prefetch = prefetch
        self._image_shape = image_shape

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self._tally.count

    def captions(self) -> list[list[str]]:
        """Reads the captions of every example, in the order of the images; [] if broken."""
        return [captions for captions, _ in self._texts()]

    def labels(self) -> Int32[np.ndarray, " n"]:
        """Reads the class of every example, in the order of the images; -1 if it has none."""
        labels = []
        for number, found in enumerate(self.label_sets()):
            try:
                labels.append(examples.single_label(found))
            except examples.WrongLabel as error:
                name = self._source.name(*self._offsets.locate_one(number))
                raise UserError(f"{name}: {error}") from error
        return np.array(labels, np.int32)

    def label_sets(self) -> list[tuple[int, ...]]:
        """Reads the classes of every example, in the order of the images; () if broken."""
        return [labels for _, labels in self._texts()]

    def images(self, parts: Iterable[Numbers] | None = None) -> Iterator[HostBatch]:
        """Returns an iterator over this process's rows of every batch, in order.

        Each has `image` uint8 [b h w 3] and `mask` bool [b], which is False on padding after the
        last example and on broken examples. The parts, numbers of examples, begin a batch each, and
        are asked for as they are needed; None is one part, all examples.
        """
        if self._image_shape is None:
            self._image_shape = self._find_shape()
        batches = (
            part[start : start + self._batch_size]
            for part in ([range(self.num_examples)] if parts is None else parts)
            for start in range(0, len(part), self._batch_size)
        )
        return parallel.take_ahead(map(self._start, batches), self._prefetch + 1)

    def close(self) -> None:
        """Ends the threads; the images cannot be read again."""
        self._workers.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, numbers: Numbers) -> parallel.Filling:
        size = len(self._rows)
        image = np.zeros((size, *self._image_shape), np.uint8)
        batch = {"image": image, "mask": np.zeros(size, bool)}

        def job(batch: HostBatch, begin: int, end: int) -> None:
            for row in range(begin, end):
                place = int(self._rows[row])
                pixels = self._pixels(int(numbers[place])) if place < len(numbers) else None
                if pixels is not None:
                    batch["image"][row], batch["mask"][row] = pixels, True

        return self._workers.fill(batch, size, job)

    def _find_shape(self) -> tuple[int, ...]:
        for number in range(self.num_examples):
            pixels = self._pixels(number)
            if pixels is not None:
                return pixels.shape
        raise BrokenDataError(f"no image can be decoded; {self._tally.tell_worst()}")

    def _pixels(self, number: int) -> np.ndarray | None:
        shard, index = self._offsets.locate_one(number)
        self._tally.count_read(1)
        try:
            image = boundary.read_example(self._source, shard, index).image
            pixels = self._transform(image, PositionRandom(0, number))
        except examples.BrokenExample as error:
            self._tally.add(shard, index, error)
            return None
        if self._image_shape not in (None, pixels.shape):
            raise UserError(
                f"{self._source.name(shard, index)}: "
                f"{image_ops.explain_sizes(self._image_shape, pixels.shape)}"
            )
        return pixels

    def _texts(self) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        for number in range(self.num_examples):
            shard, index = self._offsets.locate_one(number)
            try:
                yield boundary.read_texts(self._source, shard, index)
            except examples.BrokenExample as error:
                self._tally.add(shard, index, error)
                yield [], ()


def read_first_texts(
    source: examples.Source, tries: int = 100
) -> tuple[str, list[str], tuple[int, ...]] | None:
    """Returns the name, captions and labels of the first example with readable texts, or None."""
    offsets = ShardOffsets(source.shard_sizes)
    for number in range(min(tries, offsets.count)):
        place = offsets.locate_one(number)
        try:
            return source.name(*place), *boundary.read_texts(source, *place)
        except examples.BrokenExample:
            continue
    return None
