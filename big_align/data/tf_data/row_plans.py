"""Python's part in a tf.data pipeline: the order, the encoded bytes, and what is drawn."""

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data.examples import BrokenExample
from big_align.data.loading.mixture import interleave
from big_align.data.loading.randomness import PositionRandom
from big_align.data.loading.rows import RowStream, Visit
from big_align.data.loading.stream import Location
from big_align.data.tf_data.frames import Frame, FrameTransform
from big_align.data.tf_data.jpeg_header import read_plain_jpeg
from big_align.data.workers.batch_memory import Row
from big_align.errors import UserError

LARGEST = 2**24  # pixels; a graph decodes the whole image, the loader a smaller version

Arrays = dict[str, np.ndarray]


class RowPlanner:
    """Plans rows of batches for a graph, or makes them as the loader does if the graph cannot.

    A row is planned if its example is intact as far as Python sees and its image is a plain JPEG;
    the graph decodes it. All others, and those that the graph fails to decode, are made here: so
    pictures of any format, broken examples and their substitutes are the same as the loader's.

    Args:
      streams: the streams by name; their rows are laid into a batch as by `TrainLoader`.
      rows: the rows of the global batch that this process makes.

    Attributes:
      row: the shape and the type of each array of a batch, without the batch's axis.
      texts: how many texts a row has.
      error: the first error that Python raised, or None; TensorFlow passes on only its text.

    Raises:
      UserError: a stream has no images, or its transform has an operation that no graph can do.
    """

    def __init__(self, streams: Mapping[str, RowStream], rows: Int[np.ndarray, " r"]):
        self._streams = list(streams.values())
        for name, stream in streams.items():
            if stream.images is None:
                raise UserError(
                    f"{name or 'the data'} has a precomputed image_embedding and no images, which "
                    "a tf.data pipeline would decode; train with config.data.pipeline = None"
                )
        self.row: Row = self._streams[0].row
        self._frames = [FrameTransform(stream.images.operations) for stream in self._streams]
        counts = {name: each.examples.batch_size for name, each in streams.items()}
        self._parts, self._stream_rows = interleave(counts)
        self._rows = rows
        shape = self.row["text"][0]
        self.texts = shape[0] if len(shape) > 1 else 1
        self._extra = [k for k in self.row if k not in ("image", "text", "text_mask", "label")]
        self._views = self._streams[0].images.views
        self.error: Exception | None = None
        self._lock = threading.Lock()

    def plan(self, numbers: Int[np.ndarray, " n"]) -> Arrays:
        """Plans rows; those that are not planned are left to `make`.

        Args:
          numbers: the numbers of the rows, counted through all batches of this process.

        Returns:
          `planned` bool [n]; `data` [n], encoded images; `window` int32 [n v 7] and `placement`
          float32 [n v 4] as `Frame` has them; `texts` [n k] and `count` int32 [n], how many of them
          there are; `label` and the extra fields. If `planned` is False the rest means nothing.
        """
        size = len(numbers)
        plans = self._make_fields(size) | {
            "planned": np.zeros(size, bool),
            "data": np.full(size, b"", object),
            "window": np.zeros((size, self._views, 7), np.int32),
            "placement": np.ones((size, self._views, 4), np.float32),
        }
        for (stream, step), places in self._group(numbers).items():
            for place, drawn in zip(places, self._draw(stream, step, numbers[places]), strict=True):
                if drawn is None:
                    continue
                visit, frames = drawn
                self._write_fields(plans, place, visit)
                plans["data"][place] = visit.image
                plans["window"][place] = [frame.window for frame in frames]
                plans["placement"][place] = [frame.placement for frame in frames]
                plans["planned"][place] = True
        return plans

    def make(self, number: int) -> Arrays:
        """Makes a row as the loader does: of its example or of its first intact substitute.

        Args:
          number: the number of the row, counted through all batches of this process.

        Returns:
          `image`, `texts` [k], `count`, `label` and the extra fields.
        """
        ((stream, step),) = self._group(np.array([number]))
        rows = self._streams[stream]
        image = np.empty(self.row["image"][0], np.uint8)
        memory = [memoryview(image.reshape(-1))]

        def finish(_: list[int], visits: list[Visit]) -> list[BrokenExample | None]:
            try:
                for text in visits[0].texts:
                    text.encode()
            except UnicodeEncodeError as error:
                return [BrokenExample(f"the text is not Unicode ({error})")]
            return rows.images.apply([(visit.image, visit.rng) for visit in visits], memory)

        (visit,) = rows.examples.visit(step, self._rows_of(np.array([number])), rows.draw, finish)
        fields = self._make_fields(1)
        self._write_fields(fields, 0, visit)
        return {"image": image, **{name: array[0] for name, array in fields.items()}}

    def keep_errors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that keeps the first error it raises in `error`."""

        @functools.wraps(function)
        def keep(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except Exception as error:
                with self._lock:
                    self.error = self.error or error
                raise

        return keep

    def _group(self, numbers: Int[np.ndarray, " n"]) -> dict[tuple[int, int], list[int]]:
        """Groups rows by their stream and step; returns their places in `numbers`."""
        steps, places = np.divmod(numbers, len(self._rows))
        groups: dict[tuple[int, int], list[int]] = {}
        streams = self._parts[self._rows[places]]
        for place, key in enumerate(zip(streams.tolist(), steps.tolist(), strict=True)):
            groups.setdefault(key, []).append(place)
        return groups

    def _rows_of(self, numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns the rows in the batches of their streams."""
        return self._stream_rows[self._rows[numbers % len(self._rows)]]

    def _draw(
        self, stream: int, step: int, numbers: Int[np.ndarray, " n"]
    ) -> list[tuple[Visit, list[Frame]] | None]:
        """Reads examples and draws their texts and frames; None if the graph cannot make one."""
        examples = self._streams[stream].examples
        found = examples.locate(step, self._rows_of(numbers))
        drawn = [self._draw_one(stream, location, rng) for location, rng in found]
        examples.count_read(len(drawn) - drawn.count(None))
        return drawn

    def _draw_one(
        self, stream: int, location: Location, rng: PositionRandom
    ) -> tuple[Visit, list[Frame]] | None:
        try:
            rows = self._streams[stream]
            visit = rows.draw(location, rng)
            for text in visit.texts:
                text.encode()
            size = read_plain_jpeg(visit.image) if isinstance(visit.image, bytes) else None
            if size is None or size.width * size.height > min(LARGEST, rows.images.max_pixels):
                return None
            frames = self._draw_frames(stream, size.width, size.height, visit.rng)
            return frames and (visit, frames)
        except Exception:  # `make` does it again, and reports or counts what is wrong
            return None

    def _draw_frames(
        self, stream: int, width: int, height: int, rng: PositionRandom
    ) -> list[Frame] | None:
        frames, wanted = [], self.row["image"][0][-3:-1]
        for _ in range(self._views):
            frame, size = self._frames[stream](width, height, rng)
            if size != wanted:
                return None  # the code that makes the pixels says what is wrong
            frames.append(frame)
        return frames

    def _make_fields(self, size: int) -> Arrays:
        extra = {name: self.row[name] for name in ("label", *self._extra)}
        return {
            "texts": np.full((size, self.texts), b"", object),
            "count": np.zeros(size, np.int32),
            **{name: np.zeros((size, *shape), kind) for name, (shape, kind) in extra.items()},
        }

    def _write_fields(self, fields: Arrays, place: int, visit: Visit) -> None:
        fields["count"][place] = len(visit.texts)
        fields["texts"][place, : len(visit.texts)] = [text.encode() for text in visit.texts]
        fields["label"][place] = visit.label
        for name in self._extra:
            fields[name][place] = visit.extra[name]
