"""Loaders: batches of a training stream by step, and the batches of an evaluation set."""

import math
import random
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int, Int32

from big_align.data import broken, image_ops, order, parallel, sources, tokenizers
from big_align.data.parallel import HostBatch
from big_align.errors import BrokenDataError


class TrainLoader:
    """The endless training stream: the batch of any step, or all batches from a step on.

    Global batch s holds the positions [s B, (s + 1) B) of the stream, and this loader makes
    `rows` of it. A batch is a pure function of the seed and the step (and of which files are
    broken), so nothing has to be stored or replayed to resume, and the split over processes does
    not change the stream. Each visit draws one of the captions of an example. Where one epoch
    ends inside a batch, an example may stand in it twice; nowhere else, see `_substitutes`.

    Args:
      source: the examples.
      transform: image operations, as in `resize(346)|random_crop(289)|flip_horizontal`; the
        result has one size.
      tokenizer: turns captions into `text` int32 [b l] and `text_mask` bool [b l].
      batch_size: examples of the global batch.
      rows: first and end of the rows of the global batch that this process makes; None is all.
      seed: chooses order, captions and augmentations.
      window: examples that are shuffled among each other, see `Order`.
      max_broken_share: the share of broken examples above which the run stops.
      num_threads: None is one a core.
      prefetch: batches that are filled ahead; each is held in memory.

    Raises:
      ValueError: a value is out of range, the transform is wrong, or the source holds fewer
        examples than a batch.
      BrokenDataError: too many examples are broken.
    """

    def __init__(
        self,
        source: sources.Source,
        transform: str,
        tokenizer: tokenizers.Tokenizer,
        batch_size: int,
        rows: tuple[int, int] | None = None,
        seed: int = 0,
        window: int = 2**17,
        max_broken_share: float = 0.01,
        num_threads: int | None = None,
        prefetch: int = 4,
    ):
        self.num_examples = int(source.shard_sizes.sum())
        if batch_size > self.num_examples:
            raise ValueError(
                f"batch_size is {batch_size} and the source has {self.num_examples} examples: one "
                "would stand twice in a batch, as its own negative; lower batch_size"
            )
        _check_at_least(1, prefetch=prefetch)
        self._rows = _check_rows(rows, batch_size)
        self._source = source
        self._transform = image_ops.Transform(transform)
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._seed = seed
        self._order = order.Order(source.shard_sizes, seed, window)
        self._tally = broken.BrokenTally(source, max_broken_share)
        self._workers = parallel.Workers(num_threads)
        self._prefetch = prefetch
        try:
            self._image_shape = self._load(*self._locate(np.zeros(1, np.int64))[0])[0].shape
        except BaseException:
            self.close()
            raise

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self._tally.count

    @property
    def steps_per_epoch(self) -> float:
        """Global batches in one pass over the examples."""
        return self.num_examples / self._batch_size

    def batch(self, step: int) -> HostBatch:
        """Makes this process's rows of the global batch of a step."""
        return self._start(step).result()

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on, filled ahead in threads."""
        steps = iter(range(start_step, np.iinfo(np.int64).max))
        return parallel.take_ahead(map(self._start, steps), self._prefetch + 1)

    def close(self) -> None:
        """Ends the threads; the loader cannot be used again."""
        self._workers.close()

    def __enter__(self) -> "TrainLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, step: int) -> parallel.Filling:
        first, end = self._rows
        size = end - first
        batch = {
            "image": np.empty((size, *self._image_shape), np.uint8),
            "text": np.empty((size, self._tokenizer.length), np.int32),
            "text_mask": np.empty((size, self._tokenizer.length), bool),
            "label": np.empty(size, np.int32),
            "mask": np.ones(size, bool),
        }
        start = step * self._batch_size + first

        def job(batch: HostBatch, first: int, end: int) -> None:
            self._fill(batch, np.arange(start + first, start + end), first)

        return self._workers.fill(batch, size, job)

    def _fill(self, batch: HostBatch, positions: Int[np.ndarray, " b"], first: int) -> None:
        captions, size = [], math.prod(self._image_shape)
        images = memoryview(batch["image"].reshape(-1))
        for row, place in enumerate(self._locate(positions), start=first):
            pixels, caption, batch["label"][row] = self._load(*place)
            if pixels.shape != self._image_shape:
                raise ValueError(
                    f"the transform makes images of {self._image_shape} and {pixels.shape}; end "
                    "it with a resize or a crop so that all have one size"
                )
            # as plain memory: NumPy would let go of Python's lock, and getting it back takes longer
            images[row * size : (row + 1) * size] = pixels.reshape(-1)
            captions.append(caption)
        here = slice(first, first + len(captions))
        batch["text"][here], batch["text_mask"][here] = self._tokenizer(captions)
        self._tally.see(len(captions))

    def _locate(self, positions: Int[np.ndarray, " b"]) -> list[tuple[int, int, int]]:
        """Lists position, shard and index."""
        _, shards, indexes = self._order(positions)
        return list(zip(positions.tolist(), shards.tolist(), indexes.tolist(), strict=True))

    def _load(self, position: int, shard: int, index: int) -> tuple[np.ndarray, str, int]:
        """Reads the example of a position, or of the first substitute that is whole."""
        try:
            return self._read(position, shard, index)
        except sources.BrokenExample as error:
            self._tally.add(shard, index, error)
        for substitute in self._substitutes(position):
            _, shard, index = self._locate(np.array([substitute]))[0]
            self._tally.see(1)
            try:
                return self._read(position, shard, index)
            except sources.BrokenExample as error:
                self._tally.add(shard, index, error)
        raise BrokenDataError(
            f"position {position} of the stream and all its substitutes are broken"
        )

    def _read(self, position: int, shard: int, index: int) -> tuple[np.ndarray, str, int]:
        rng = random.Random(self._seed << 64 | position)
        example = self._source.read(shard, index)
        if not example.captions:
            raise sources.BrokenExample("it has no caption")
        caption = example.captions[int(rng.random() * len(example.captions))]
        return self._transform(example.image, rng), caption, example.label

    def _substitutes(self, position: int) -> Iterator[int]:
        """Yields the positions of the epoch that may stand in, from half an epoch away on.

        They are whole batches away, so that no two positions of a batch share one and none is
        itself in the batch: no process has to know what another has found broken. A batch of more
        than half the data leaves no such place, and then the next positions follow.
        """
        epoch_start = position - position % self.num_examples
        stride, count = self._batch_size, self.num_examples // self._batch_size
        if count == 1:
            stride, count = 1, self.num_examples
        for k in range(count):
            jump = (count // 2 + k) % count
            if jump:
                yield epoch_start + (position + jump * stride) % self.num_examples


class EvalLoader:
    """A finite set in its own order: its texts at once, its images in batches.

    Every process makes its rows of every batch, and all make equally many batches.

    Args:
      source: the examples.
      transform: image operations that end in one size.
      batch_size: examples of the global batch.
      rows: first and end of the rows that this process makes; None is all.
      max_broken_share: the share of broken examples above which the run stops.
      num_threads: None is one a core.
      prefetch: batches that are filled ahead.

    Raises:
      ValueError: a value is out of range or the transform is wrong.
      BrokenDataError: too many examples are broken.
    """

    def __init__(
        self,
        source: sources.Source,
        transform: str,
        batch_size: int,
        rows: tuple[int, int] | None = None,
        max_broken_share: float = 0.01,
        num_threads: int | None = None,
        prefetch: int = 2,
    ):
        _check_at_least(1, prefetch=prefetch, batch_size=batch_size)
        self.num_examples = int(source.shard_sizes.sum())
        self._rows = _check_rows(rows, batch_size)
        self._source = source
        self._transform = image_ops.Transform(transform)
        self._batch_size = batch_size
        self._tally = broken.BrokenTally(source, max_broken_share)
        self._ends = np.cumsum(source.shard_sizes)
        self._workers = parallel.Workers(num_threads)
        self._prefetch = prefetch
        self._image_shape: tuple[int, ...] | None = None

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self._tally.count

    def captions(self) -> list[list[str]]:
        """Reads the captions of every example, in the order of the images; [] where broken."""
        return [captions for captions, _ in self._texts()]

    def labels(self) -> Int32[np.ndarray, " n"]:
        """Reads the class of every example, in the order of the images; -1 where it has none."""
        return np.array([label for _, label in self._texts()], np.int32)

    def images(self) -> Iterator[HostBatch]:
        """Returns an iterator over this process's rows of every batch, in order.

        Each has `image` uint8 [b h w 3] and `mask` bool [b], which is False on padding after the
        last example and on broken examples.
        """
        if self._image_shape is None:
            self._image_shape = self._find_shape()
        starts = range(0, self.num_examples, self._batch_size)
        return parallel.take_ahead(map(self._start, starts), self._prefetch + 1)

    def close(self) -> None:
        """Ends the threads; the images cannot be read again."""
        self._workers.close()

    def __enter__(self) -> "EvalLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, start: int) -> parallel.Filling:
        first, end = self._rows
        batch = {
            "image": np.zeros((end - first, *self._image_shape), np.uint8),
            "mask": np.zeros(end - first, bool),
        }

        def job(batch: HostBatch, begin: int, end: int) -> None:
            for row in range(begin, end):
                if start + first + row < self.num_examples:
                    pixels = self._pixels(start + first + row)
                    if pixels is not None:
                        batch["image"][row], batch["mask"][row] = pixels, True

        return self._workers.fill(batch, end - first, job)

    def _find_shape(self) -> tuple[int, ...]:
        for number in range(self.num_examples):
            pixels = self._pixels(number)
            if pixels is not None:
                return pixels.shape
        raise BrokenDataError("no image can be decoded")

    def _pixels(self, number: int) -> np.ndarray | None:
        shard, index = self._locate(number)
        self._tally.see(1)
        try:
            image = self._source.read(shard, index).image
            return self._transform(image, random.Random(number))
        except sources.BrokenExample as error:
            self._tally.add(shard, index, error)
            return None

    def _texts(self) -> Iterator[tuple[list[str], int]]:
        for number in range(self.num_examples):
            shard, index = self._locate(number)
            try:
                yield self._source.read_text(shard, index)
            except sources.BrokenExample as error:
                self._tally.add(shard, index, error)
                yield [], sources.NO_LABEL

    def _locate(self, number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, int(number - self._ends[shard] + self._source.shard_sizes[shard])


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def _check_rows(rows: tuple[int, int] | None, batch_size: int) -> tuple[int, int]:
    first, end = rows or (0, batch_size)
    if not 0 <= first < end <= batch_size:
        raise ValueError(f"rows {first}..{end} are not in a batch of batch_size={batch_size}")
    return first, end
