"""The endless stream of the examples of a source, and what happens to broken ones."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from big_align.core.errors import BrokenDataError, FieldError, UserError
from big_align.data import boundary, examples
from big_align.data.loading.broken import BrokenTally
from big_align.data.loading.shuffle import PositionRandom, Shuffle, substitutes

Location = tuple[int, int]
"""A shard and an index in it."""

T = TypeVar("T")


class ExampleStream:
    """The examples of a source in the order of training; intact ones replace broken ones.

    Global batch s holds the positions [s B, (s + 1) B) of the stream. The example at a position is
    a pure function of the seed (and of which files are broken), as is all that is drawn for it, so
    nothing has to be stored or replayed to resume, and the split over processes does not change the
    stream. If one epoch ends inside a batch, an example may occur in it twice; otherwise never, see
    `shuffle.substitutes`.
    """

    def __init__(
        self,
        source: examples.Source,
        batch_size: int,
        seed: int = 0,
        window: int = 2**17,
        max_broken_fraction: float = 0.01,
    ):
        self.source = source
        self.batch_size = batch_size
        self.num_examples = int(source.shard_sizes.sum())
        if not self.num_examples:
            raise UserError("the source has no examples; its path should name some")
        if batch_size > self.num_examples:
            raise FieldError(
                f"batch_size is {batch_size} and the source has {self.num_examples} examples: one "
                "would be in a batch twice, as its own negative",
                batch_size="FEWER",
            )
        self._seed = seed
        self._order = Shuffle(source.shard_sizes, seed, window)
        self.tally = BrokenTally(source, max_broken_fraction)

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return self.tally.count

    @property
    def steps_per_epoch(self) -> float:
        """Global batches in one pass over the examples."""
        return self.num_examples / self.batch_size

    @property
    def size(self) -> str:
        """The number of examples and a checksum of the shards' sizes: the order depends on both."""
        sizes = np.ascontiguousarray(self.source.shard_sizes, "<i8")
        return f"{self.num_examples} examples (shard sizes {zlib.crc32(sizes):08x})"

    def visit(
        self,
        step: int,
        rows: Int[np.ndarray, " n"],
        draw: Callable[[Location, PositionRandom], T],
        finish: Callable[[list[int], list[T]], Sequence[examples.BrokenExample | None]],
    ) -> list[T]:
        """Reads the examples of rows of a global batch, or their first intact substitutes.

        Args:
          step: the step of the global batch.
          rows: rows of the global batch.
          draw: reads the example at a location, with the random numbers of the position; raises
            BrokenExample if it is broken. What it returns is returned.
          finish: decodes what `draw` returned for several rows. It receives the index of each in
            `rows`, and returns for each why it is broken, or None. It is called again for the
            substitutes of the broken ones.
        """
        positions = step * self.batch_size + rows
        candidates = list(map(self._candidates, positions.tolist(), self._locate(positions)))
        locations: dict[int, Location] = {}
        made: dict[int, T] = {}
        left = list(range(len(rows)))
        while left:
            for n in left:
                locations[n], made[n] = self._draw(int(positions[n]), candidates[n], draw)
            outcomes = finish(left, [made[n] for n in left])
            faults = {n: fault for n, fault in zip(left, outcomes, strict=True) if fault}
            for n, fault in faults.items():
                self.tally.add(*locations[n], fault)
            left = list(faults)
        self.tally.count_read(len(rows))
        return [made[n] for n in range(len(rows))]

    def list_names(self, step: int, rows: Int[np.ndarray, " n"]) -> list[str]:
        """Names the examples of rows of a batch, with substitutes for those known as broken."""
        positions = step * self.batch_size + rows
        names = []
        for position, location in zip(positions.tolist(), self._locate(positions), strict=True):
            if self.tally.knows(*location):
                others = substitutes(position, self.num_examples, self.batch_size)
                places = (self._locate(np.array([other]))[0] for other in others)
                location = next((x for x in places if not self.tally.knows(*x)), location)
            names.append(self.source.name(*location))
        return names

    def _draw(
        self,
        position: int,
        candidates: Iterator[Location],
        draw: Callable[[Location, PositionRandom], T],
    ) -> tuple[Location, T]:
        """Draws from the first candidate that is not broken."""
        for location in candidates:
            try:
                with boundary.ONE_EXAMPLE:
                    return location, draw(location, PositionRandom(self._seed, position))
            except examples.BrokenExample as error:
                self.tally.add(*location, error)
        raise BrokenDataError(
            f"position {position} of the stream and all its substitutes are broken; "
            f"{self.tally.tell_worst()}. Mend the shard"
        )

    def _candidates(self, position: int, location: Location) -> Iterator[Location]:
        """Yields the location of a position, then those of its substitutes."""
        yield location
        for substitute in substitutes(position, self.num_examples, self.batch_size):
            self.tally.count_read(1)
            yield self._locate(np.array([substitute]))[0]

    def _locate(self, positions: Int[np.ndarray, " n"]) -> list[Location]:
        _, shards, indexes = self._order(positions)
        return list(zip(shards.tolist(), indexes.tolist(), strict=True))
