"""The loader of the training stream: the batch of any step, or all batches from a step on."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from big_align.data import (
    broken,
    image_ops,
    image_workers,
    order,
    parallel,
    randomness,
    sources,
    tokenizers,
)
from big_align.data.evaluation_loader import EvalLoader
from big_align.data.parallel import HostBatch
from big_align.errors import BrokenDataError

__all__ = ["EvalLoader", "TrainLoader"]

Place = tuple[int, int]
"""A shard and an index in it."""


class Visit(NamedTuple):
    """An example as it is drawn for a position of the stream; its image is still encoded."""

    place: Place
    image: Any
    rng: randomness.PositionRandom
    captions: list[str]
    label: int


class TrainLoader:
    """The endless training stream: the batch of any step, or all batches from a step on.

    Global batch s holds the positions [s B, (s + 1) B) of the stream, and this loader makes
    `rows` of it. A batch is a pure function of the seed and the step (and of which files are
    broken), so nothing has to be stored or replayed to resume, and the split over processes does
    not change the stream. Each visit draws one of the captions of an example, or several different
    ones. Where one epoch ends inside a batch, an example may stand in it twice; nowhere else, see
    `_substitutes`.

    Args:
      source: the examples.
      transform: image operations, as in `resize(346)|random_crop(289)|flip_horizontal`; the
        result has one size.
      tokenizer: turns captions into ids and which of them are real.
      batch_size: examples of the global batch.
      rows: first and end of the rows of the global batch that this process makes; None is all.
      seed: chooses order, captions and augmentations.
      window: examples that are shuffled among each other, see `Order`.
      max_broken_share: the share of broken examples above which the run stops.
      num_threads: None is one a core, or two a process.
      num_processes: processes that decode and transform images; 0 does it in the threads. They
        are worth their start on many cores, and where images are small (`image_workers`).
      prefetch: batches that are filled ahead; each is held in memory.
      captions_per_image: with k > 1 `text` is int32 [b k l] and `text_mask` bool [b k l]; an
        example that has fewer captions fills up with texts whose mask is False throughout.

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
        num_processes: int = 0,
        prefetch: int = 4,
        captions_per_image: int = 1,
    ):
        self.num_examples = int(source.shard_sizes.sum())
        if batch_size > self.num_examples:
            raise ValueError(
                f"batch_size is {batch_size} and the source has {self.num_examples} examples: one "
                "would stand twice in a batch, as its own negative; lower batch_size"
            )
        parallel.check_at_least(1, prefetch=prefetch, captions_per_image=captions_per_image)
        parallel.check_at_least(0, num_processes=num_processes)
        self._rows = parallel.check_rows(rows, batch_size)
        self._source = source
        self._tokenizer = tokenizer
        self._batch_size = batch_size
        self._seed = seed
        self._prefetch = prefetch
        self._captions_per_image = captions_per_image
        self._order = order.Order(source.shard_sizes, seed, window)
        self._tally = broken.BrokenTally(source, max_broken_share)
        self._image_shape = self._find_shape(image_ops.Transform(transform))
        self._images = (
            image_workers.ImageProcesses(
                transform, self._image_shape, num_processes, capacity=parallel.CHUNK_MAX
            )
            if num_processes
            else image_workers.LocalImages(transform, self._image_shape)
        )
        self._workers = parallel.Workers(num_threads or 2 * num_processes or None)

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
        """Ends threads and processes; the loader cannot be used again."""
        self._workers.close()
        self._images.close()

    def __enter__(self) -> "TrainLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, step: int) -> parallel.Filling:
        first, end = self._rows
        size = end - first
        text_shape = text_shape_of(self._tokenizer.length, self._captions_per_image)
        batch = {
            "image": np.empty((size, *self._image_shape), np.uint8),
            "text": np.empty((size, *text_shape), np.int32),
            "text_mask": np.empty((size, *text_shape), bool),
            "label": np.empty(size, np.int32),
            "mask": np.ones(size, bool),
        }
        start = step * self._batch_size + first

        def job(batch: HostBatch, first: int, end: int) -> None:
            self._fill(batch, np.arange(start + first, start + end), first)

        return self._workers.fill(batch, size, job)

    def _fill(self, batch: HostBatch, positions: Int[np.ndarray, " b"], first: int) -> None:
        """Fills the rows of `positions`, those of broken examples again until all are whole."""
        count, size = len(positions), math.prod(self._image_shape)
        images = memoryview(batch["image"].reshape(-1))
        images = [images[row * size : (row + 1) * size] for row in range(first, first + count)]
        candidates = list(map(self._candidates, positions.tolist(), self._locate(positions)))
        visits: dict[int, Visit] = {}
        rows = range(count)
        while rows:
            visits |= {row: self._draw(int(positions[row]), candidates[row]) for row in rows}
            work = [(visits[row].image, visits[row].rng) for row in rows]
            outcomes = self._images.apply(work, [images[row] for row in rows])
            faults = {row: fault for row, fault in zip(rows, outcomes, strict=True) if fault}
            for row, fault in faults.items():
                self._tally.add(*visits[row].place, fault)
            rows = list(faults)
        here = slice(first, first + count)
        batch["label"][here] = [visits[row].label for row in range(count)]
        self._fill_texts(batch, here, [visits[row].captions for row in range(count)])
        self._tally.see(count)

    def _fill_texts(self, batch: HostBatch, here: slice, captions: list[list[str]]) -> None:
        wanted = self._captions_per_image
        missing = [[False] * len(row) + [True] * (wanted - len(row)) for row in captions]
        flat = [text for row in captions for text in row + [""] * (wanted - len(row))]
        text, text_mask = self._tokenizer(flat)
        text_mask[np.array(missing).reshape(-1)] = False
        shape = batch["text"][here].shape
        batch["text"][here] = text.reshape(shape)
        batch["text_mask"][here] = text_mask.reshape(shape)

    def _draw(self, position: int, candidates: Iterator[Place]) -> Visit:
        """Reads the first candidate whose texts are whole, and draws from its captions."""
        for place in candidates:
            rng = randomness.PositionRandom(self._seed, position)
            try:
                example = self._source.read(*place)
                if not example.captions:
                    raise sources.BrokenExample("it has no caption")
            except sources.BrokenExample as error:
                self._tally.add(*place, error)
                continue
            captions = _draw_different(example.captions, self._captions_per_image, rng)
            return Visit(place, example.image, rng, captions, example.label)
        raise BrokenDataError(
            f"position {position} of the stream and all its substitutes are broken"
        )

    def _find_shape(self, transform: image_ops.Transform) -> tuple[int, ...]:
        """Makes the first image of the stream to see its shape."""
        candidates = self._candidates(0, self._locate(np.zeros(1, np.int64))[0])
        while True:
            visit = self._draw(0, candidates)
            try:
                return transform(visit.image, visit.rng).shape
            except sources.BrokenExample as error:
                self._tally.add(*visit.place, error)

    def _locate(self, positions: Int[np.ndarray, " b"]) -> list[Place]:
        _, shards, indexes = self._order(positions)
        return list(zip(shards.tolist(), indexes.tolist(), strict=True))

    def _candidates(self, position: int, place: Place) -> Iterator[Place]:
        """Yields the place of a position, then those that may stand in for it."""
        yield place
        for substitute in self._substitutes(position):
            self._tally.see(1)
            yield self._locate(np.array([substitute]))[0]

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


def text_shape_of(length: int, captions_per_image: int) -> tuple[int, ...]:
    """Returns the shape of an example's `text`."""
    return (length,) if captions_per_image == 1 else (captions_per_image, length)


def _draw_different(
    captions: list[str], count: int, rng: randomness.PositionRandom
) -> list[str]:
    """Draws `count` captions, or all in a drawn order where there are no more."""
    left, drawn = list(captions), []
    while left and len(drawn) < count:
        drawn.append(left.pop(int(rng.random() * len(left))))
    return drawn
