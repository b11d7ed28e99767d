"""The loader of the training stream: the batch of any step, or all batches from a step on."""

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from big_align.data import examples, randomness
from big_align.data.images import image_ops, image_workers
from big_align.data.labels import label_check
from big_align.data.labels.classes import ClassList
from big_align.data.loading import broken, order, parallel, texts
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.loading.parallel import HostBatch
from big_align.data.loading.texts import text_shape_of
from big_align.data.precomputed.joins import Join
from big_align.data.tags.tag_extraction import Tagger
from big_align.data.text import tokenizers
from big_align.errors import BrokenDataError, UserError
from big_align.nodes import Given

__all__ = ["EvalLoader", "TrainLoader", "text_shape_of"]

Place = tuple[int, int]
"""A shard and an index in it."""

Row = dict[str, tuple[tuple[int, ...], Any]]
"""The shape and the type of each array of a batch, without the batch's axis."""


class Visit(NamedTuple):
    """An example as it is drawn for a position of the stream; its image is still encoded."""

    place: Place
    image: Any
    rng: randomness.PositionRandom
    texts: list[str]
    label: int
    joined: dict[str, np.ndarray]


class TrainLoader:
    """The endless training stream: the batch of any step, or all batches from a step on.

    Global batch s holds the positions [s B, (s + 1) B) of the stream, and this loader makes
    `rows` of it. A batch is a pure function of the seed and the step (and of which files are
    broken), so nothing has to be stored or replayed to resume, and the split over processes does
    not change the stream. Each visit draws one of the captions of an example, or several different
    ones; with a class list it draws templates instead, filled with the class of the example. Where
    one epoch ends inside a batch, an example may stand in it twice; nowhere else, see
    `order.substitutes`.

    Args:
      source: the examples.
      transform: image operations, as in `resize(346)|random_crop(289)|flip_horizontal`; the
        result has one size.
      tokenizer: turns captions into ids and which of them are real.
      batch_size: examples of the global batch.
      rows: the rows of the global batch that this process makes, ascending; None is all.
      seed: chooses order, captions and augmentations.
      window: examples that are shuffled among each other, see `Order`.
      max_broken_share: the share of broken examples above which the run stops.
      num_threads: None is one a core, or two a process.
      num_processes: processes that decode and transform images; 0 does it in the threads. They
        are worth their start on many cores, and where images are small (`image_workers`).
      prefetch: batches that are filled ahead; each is held in memory.
      captions_per_image: with k > 1 `text` is int32 [b k l] and `text_mask` bool [b k l]; an
        example that has fewer captions fills up with texts whose mask is False throughout. With 0
        no texts are read, and examples need none.
      views_per_image: with v > 1 `image` is uint8 [b v h w 3], each view with its own draws.
      classes: the classes of the labels 0 to n - 1; the captions are then not used.
      templates: texts with one `{}` for the class; None takes those of the class list, else
        "a photo of a {}.".
      describe_classes: fills templates with "NAME, DESCRIPTION".
      label_offset: is added to the labels of a part that has classes.
      joins: rows that belong to the examples, by their name in the batch. With `image_embedding`
        images are not decoded, and the batch has none.
      tagger: finds the tags of the texts that are drawn; the batch then has `tags`, int32 [b t].
      captions_used: only so many of an example's captions, the first ones, exist for training; None
        for all. The truth about tags (`Tagger`) is of all its captions.

    Raises:
      ValueError: a value is out of range, the transform is wrong, or the source holds fewer
        examples than a batch.
      UserError: the source is empty, names other classes than the list, or holds an example
        without a label that is in the list.
      BrokenDataError: too many examples are broken.
    """

    def __init__(
        self,
        source: examples.Source,
        transform: str,
        tokenizer: tokenizers.Tokenizer,
        batch_size: Given[int],
        rows: Int[np.ndarray, " r"] | None = None,
        seed: Given[int] = 0,
        window: int = 2**17,
        max_broken_share: float = 0.01,
        num_threads: int | None = None,
        num_processes: int = 0,
        prefetch: int = 4,
        captions_per_image: int = 1,
        views_per_image: int = 1,
        classes: ClassList | None = None,
        templates: tuple[str, ...] | None = None,
        describe_classes: bool = False,
        label_offset: Given[int] = 0,
        joins: Mapping[str, Join] = types.MappingProxyType({}),
        tagger: Tagger | None = None,
        captions_used: int | None = None,
    ):
        self.num_examples = int(source.shard_sizes.sum())
        if not self.num_examples:
            raise UserError("the source has no examples; its path should name some")
        if batch_size > self.num_examples:
            raise ValueError(
                f"batch_size is {batch_size} and the source has {self.num_examples} examples: one "
                "would stand twice in a batch, as its own negative; lower batch_size"
            )
        parallel.check_at_least(1, prefetch=prefetch, views_per_image=views_per_image)
        parallel.check_at_least(
            0, num_processes=num_processes, label_offset=label_offset,
            captions_per_image=captions_per_image,
        )
        if captions_used is not None and captions_used < max(1, captions_per_image):
            raise ValueError(
                f"captions_used is {captions_used}; it must be at least 1 and captions_per_image, "
                f"which is {captions_per_image}"
            )
        self._rows = parallel.check_rows(rows, batch_size)
        self._source = source
        self._tokenizer = tokenizer
        self.batch_size = batch_size
        self._seed = seed
        self.num_processes = num_processes
        self._prefetch = prefetch
        self._captions_per_image = captions_per_image
        self.classes = classes
        self._texts: texts.Texts = texts.NoTexts()
        if captions_per_image:
            self._texts = texts.CaptionTexts(captions_per_image, captions_used)
        if classes is not None:
            self._texts = texts.ClassTexts(
                captions_per_image, classes, templates, describe_classes, label_offset
            )
            label_check.check_class_names(source, classes)
            label_check.check_labels(source, len(classes))
        self._order = order.Order(source.shard_sizes, seed, window)
        self._tally = broken.BrokenTally(source, max_broken_share)
        self._joins, self._tagger = dict(joins), tagger
        tag_shapes = tagger.shapes if tagger else {}
        text_shape = text_shape_of(tokenizer.length, captions_per_image)
        self.row: Row = {
            "text": (text_shape, np.int32),
            "text_mask": (text_shape, bool),
            "label": ((), np.int32),
            **{name: (join.shape, join.dtype) for name, join in joins.items()},
            **{name: (shape, np.int32) for name, shape in tag_shapes.items()},
        }
        self._images: image_workers.Images = image_workers.NoImages()
        if "image_embedding" not in joins:
            shape = self._find_shape(image_ops.Transform(transform))
            views = (views_per_image,) if views_per_image > 1 else ()
            self.row["image"] = ((*views, *shape), np.uint8)
            self._images = image_workers.make_images(
                transform, shape, num_processes, parallel.CHUNK_MAX, views_per_image
            )
        self._workers = parallel.Workers(num_threads or 2 * num_processes or None)

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self._tally.count

    @property
    def steps_per_epoch(self) -> float:
        """Global batches in one pass over the examples."""
        return self.num_examples / self.batch_size

    @property
    def shards(self) -> dict[str, str]:
        """What each shard is called and holds, by its place in the order."""
        return {
            f"shard {number}": f"{self._source.shard_name(number)} ({size} examples)"
            for number, size in enumerate(self._source.shard_sizes)
        }

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how often the examples have been gone through before a step."""
        return {"epoch": step / self.steps_per_epoch}

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

    def fill(
        self,
        batch: HostBatch,
        step: int,
        places: Int[np.ndarray, " n"],
        rows: Int[np.ndarray, " n"],
    ) -> None:
        """Writes rows of the global batch of a step into rows of a batch.

        Args:
          batch: arrays as `empty_batch` makes them; `mask` is left alone.
          step: of the global batch.
          places: the rows of the global batch to make.
          rows: the rows of `batch` that they go to.
        """
        positions = step * self.batch_size + places
        visits = self._visit(positions, _image_memory(batch, rows))
        batch["label"][rows] = [visit.label for visit in visits]
        for name in visits[0].joined:
            batch[name][rows] = [visit.joined[name] for visit in visits]
        batch["text"][rows], batch["text_mask"][rows] = texts.tokenize(
            self._tokenizer, [visit.texts for visit in visits], self._captions_per_image
        )
        self._tally.see(len(rows))

    def _start(self, step: int) -> parallel.Filling:
        def job(batch: HostBatch, begin: int, end: int) -> None:
            self.fill(batch, step, self._rows[begin:end], np.arange(begin, end))

        batch = empty_batch(len(self._rows), self.row)
        return self._workers.fill(batch, len(self._rows), job)

    def _visit(
        self, positions: Int[np.ndarray, " n"], images: Sequence[memoryview | None]
    ) -> list[Visit]:
        """Draws the visits of `positions`, the broken ones again until all their images are made.

        Each image is written into its flat memory in `images`.
        """
        candidates = list(map(self._candidates, positions.tolist(), self._locate(positions)))
        visits: dict[int, Visit] = {}
        left = list(range(len(positions)))
        while left:
            visits |= {n: self._draw(int(positions[n]), candidates[n]) for n in left}
            work = [(visits[n].image, visits[n].rng) for n in left]
            outcomes = self._images.apply(work, [images[n] for n in left])
            faults = {n: fault for n, fault in zip(left, outcomes, strict=True) if fault}
            for n, fault in faults.items():
                self._tally.add(*visits[n].place, fault)
            left = list(faults)
        return [visits[n] for n in range(len(positions))]

    def _draw(self, position: int, candidates: Iterator[Place]) -> Visit:
        """Reads the first candidate whose texts are whole, and draws its texts."""
        for place in candidates:
            rng = randomness.PositionRandom(self._seed, position)
            try:
                example = self._source.read(*place)
                drawn, label = self._texts.draw(example, self._source.name(*place), rng)
                joined = {k: j.read(*place, example.key) for k, j in self._joins.items()}
                if self._tagger:
                    joined |= self._tagger(drawn, example.captions)
            except examples.BrokenExample as error:
                if self.classes is not None and isinstance(error, examples.WrongLabel):
                    raise UserError(f"{self._source.name(*place)}: {error}") from error
                self._tally.add(*place, error)
                continue
            return Visit(place, example.image, rng, drawn, label, joined)
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
            except examples.BrokenExample as error:
                self._tally.add(*visit.place, error)

    def _locate(self, positions: Int[np.ndarray, " b"]) -> list[Place]:
        _, shards, indexes = self._order(positions)
        return list(zip(shards.tolist(), indexes.tolist(), strict=True))

    def _candidates(self, position: int, place: Place) -> Iterator[Place]:
        """Yields the place of a position, then those that may stand in for it."""
        yield place
        for substitute in order.substitutes(position, self.num_examples, self.batch_size):
            self._tally.see(1)
            yield self._locate(np.array([substitute]))[0]


def _image_memory(batch: HostBatch, rows: Int[np.ndarray, " n"]) -> list[memoryview | None]:
    """Returns the flat memory of the images of some rows; None where a batch has none."""
    if "image" not in batch:
        return [None] * len(rows)
    size = math.prod(batch["image"].shape[1:])
    flat = memoryview(batch["image"].reshape(-1))
    return [flat[row * size : (row + 1) * size] for row in rows.tolist()]


def empty_batch(rows: int, row: Row) -> HostBatch:
    """Makes the arrays of a batch whose rows are all real and still to be filled."""
    arrays = {name: np.empty((rows, *shape), dtype) for name, (shape, dtype) in row.items()}
    return arrays | {"mask": np.ones(rows, bool)}
