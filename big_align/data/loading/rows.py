"""Rows of batches, made from the examples of a stream by the parts of a loader."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from big_align.core.errors import UserError
from big_align.data.boundary import ONE_EXAMPLE, read_example, read_without_image
from big_align.data.examples import BrokenExample, WrongLabel
from big_align.data.loading.extra_fields import ExtraFields
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.loading.stream import ExampleStream, Location
from big_align.data.loading.text_samplers import TextSampler
from big_align.data.workers.batch_memory import HostBatch, Row

HELD_BYTES = 2**24
"""Bytes of encoded images that a worker holds: many photographs, one or two of the largest."""


class Visit(NamedTuple):
    """An example as it is drawn for a row; its image is still encoded."""

    image: Any
    rng: PositionRandom
    texts: list[str]
    label: int
    extra: dict[str, np.ndarray]


class RowStream:
    """A stream of examples, each with its image, texts, label and extra fields.

    Without `images` none are read, and the batch has none.

    Attributes:
      row: the shape and the type of each array of a batch, without the batch's axis.
      staying: what other processes that fill rows call in this one.
    """

    def __init__(
        self,
        examples: ExampleStream,
        texts: TextSampler,
        images: ImagePipeline | None = None,
        extra: ExtraFields | None = None,
    ):
        texts.check(examples.source)
        self.examples = examples
        self._images = images
        self._texts, self._extra = texts, extra or ExtraFields()
        self._read = read_example if images else read_without_image
        self._image_bytes = 1  # of the largest file in the last read
        self.row: Row = {**texts.row, "label": ((), np.int32), **self._extra.row}
        if images:
            examples.visit(0, np.zeros(1, np.int64), self._draw, self._start_images)

    @property
    def staying(self) -> list[Any]:
        """The count of broken examples, and what has the tokenizer: one for all processes."""
        return [self.examples.tally, self._texts.make_ids]

    def fill(
        self, batch: HostBatch, step: int, rows: Int[np.ndarray, " n"], into: Int[np.ndarray, " n"]
    ) -> None:
        """Writes rows of the stream's global batch of a step into the rows `into` of a batch."""
        first = 0
        while first < len(rows):
            end = first + max(1, HELD_BYTES // self._image_bytes)
            self._fill_some(batch, step, rows[first:end], into[first:end])
            first = end

    def _fill_some(
        self, batch: HostBatch, step: int, rows: Int[np.ndarray, " n"], into: Int[np.ndarray, " n"]
    ) -> None:
        """Fills rows whose encoded images are held in memory together."""
        memory: list[memoryview] = []
        if self._images:
            size = math.prod(batch["image"].shape[1:])
            flat = memoryview(batch["image"].reshape(-1))
            memory = [flat[row * size : (row + 1) * size] for row in into.tolist()]

        def finish(numbers: list[int], visits: list[Visit]) -> Sequence[BrokenExample | None]:
            outcomes = self._tokenize(batch, into[numbers], visits)
            if self._images is None:
                return outcomes
            work = [(visit.image, visit.rng) for visit in visits]
            images = self._images.apply(work, [memory[n] for n in numbers])
            return [one or other for one, other in zip(outcomes, images, strict=True)]

        visits = self.examples.visit(step, rows, self._draw, finish)
        self._image_bytes = max(_count_bytes(visit.image) for visit in visits)
        batch["label"][into] = [visit.label for visit in visits]
        for name in self._extra.row:
            batch[name][into] = [visit.extra[name] for visit in visits]

    def _tokenize(
        self, batch: HostBatch, into: Int[np.ndarray, " n"], visits: list[Visit]
    ) -> Sequence[BrokenExample | None]:
        """Writes the ids of texts in one call, or one by one if that fails on some of them."""
        texts, rngs = [visit.texts for visit in visits], [visit.rng for visit in visits]
        try:
            with ONE_EXAMPLE:
                batch["text"][into], batch["text_mask"][into] = self._texts.tokenize(texts, rngs)
        except BrokenExample as error:
            if len(visits) == 1:
                return [error]
            each = (self._tokenize(batch, into[n : n + 1], [one]) for n, one in enumerate(visits))
            return [outcome for outcomes in each for outcome in outcomes]
        return [None] * len(visits)

    def _draw(self, location: Location, rng: PositionRandom) -> Visit:
        """Reads an example and draws its texts; a wrong label that is trained on is a UserError."""
        source = self.examples.source
        try:
            example = self._read(source, *location)
            texts, label = self._texts.draw(example, source.name(*location), rng)
        except WrongLabel as error:
            if self._texts.needs_labels:
                raise UserError(f"{source.name(*location)}: {error}") from error
            raise
        extra = self._extra.read(location, example, texts)
        return Visit(example.image, rng, texts, label, extra)

    def _start_images(self, _: list[int], visits: list[Visit]) -> Sequence[BrokenExample | None]:
        (first,) = visits
        self._image_bytes = _count_bytes(first.image)
        try:
            self.row |= self._images.start(first.image, first.rng)
        except BrokenExample as error:
            return [error]
        return [None]


def _count_bytes(image: Any) -> int:
    """Returns the bytes that an encoded image takes; pixels belong to the source and count as 1."""
    return max(1, len(image)) if isinstance(image, bytes) else 1
