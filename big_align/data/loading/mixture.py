"""Several parts of the data in set shares of every batch (UniCL appendix B.2, iCLIP §4.1)."""

import math
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Int

from big_align.data import examples
from big_align.data.loading import parallel
from big_align.data.loading.loader import TrainLoader, empty_batch
from big_align.data.loading.parallel import HostBatch
from big_align.errors import UserError

SUM_TOLERANCE = 1e-6
REMEDIES = {
    "image": "the transform",
    "text": "the tokenizer or captions_per_image",
    "text_mask": "the tokenizer or captions_per_image",
    "tags": "max_tags",
    "true_tags": "max_tags or truth",
}
"""What gives the arrays of a batch their shape; the others are joined."""


def part_rows(weights: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Divides the rows of a batch by largest remainder; of equal remainders the first gets it.

    Args:
      weights: the share of each part.
      batch_size: rows of the global batch.

    Returns:
      The rows of each part, at least one.

    Raises:
      UserError: there is no part, a weight is not positive, the weights do not sum to 1, or a part
        gets no row.
    """
    listed = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
    wrong = [name for name, weight in weights.items() if not weight > 0]
    if wrong:
        raise UserError(f"the weight of {wrong[0]} must be above 0; the weights are {listed}")
    total = math.fsum(weights.values())
    if not abs(total - 1) <= SUM_TOLERANCE:
        raise UserError(f"the weights must sum to 1 and sum to {total:g}: {listed or 'none'}")
    shares = {name: weight / total * batch_size for name, weight in weights.items()}
    # a share within rounding of a whole number is meant to be that number
    rows = {name: math.floor(share + SUM_TOLERANCE) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: rows[name] - shares[name])
    for name in by_remainder[: batch_size - sum(rows.values())]:
        rows[name] += 1
    empty = [name for name, count in rows.items() if not count]
    if empty:
        raise UserError(
            f"batch_size is {batch_size} and gives no row to {empty[0]}, whose weight is "
            f"{weights[empty[0]]:g}; raise batch_size or the weight"
        )
    return rows


def part_seed(seed: int, name: str) -> int:
    """Returns the seed of a part: parts with the same examples have them in different order."""
    return (seed << 32) + zlib.crc32(name.encode())


def part_processes(weights: Mapping[str, float], num_processes: int) -> dict[str, int]:
    """Divides image processes among the parts, at least one each; 0 of 0."""
    least = min(1, num_processes)
    return {name: max(least, round(share * num_processes)) for name, share in weights.items()}


def interleave(counts: Mapping[str, int]) -> tuple[Int[np.ndarray, " b"], Int[np.ndarray, " b"]]:
    """Lays the rows of the parts into one batch as evenly as they go.

    Row k of n is due at (k + 1/2) / n of the batch. So the pattern has the period of the greatest
    common divisor, and any stretch of rows has nearly the shares of the whole: that of a process,
    of a device, of a group of BatchNorm.

    Args:
      counts: rows of each part.

    Returns:
      For each row of the batch the number of its part, and its row in the batch of the part; the
      latter increases.
    """
    sizes = list(counts.values())
    parts = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    due = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    order = np.argsort(due, kind="stable")
    return parts[order], places[order]


class MixtureLoader:
    """An endless stream whose every batch has set numbers of rows of each part.

    Each part is a stream of its own: it has its own order and its own epochs, and its global batch
    of a step is laid into the rows of the mixture by `interleave`. So what holds of `TrainLoader`
    holds here: a batch is a function of the seeds and the step, and the split over processes does
    not change it.

    A label means something only with a class list: rows of parts without one have -1.

    Args:
      loaders: the parts by name; the global batch of each is its rows (`part_rows`). They are
        closed with the mixture. Their own `rows`, threads and prefetch are not used.
      rows: the rows of the global batch that this process makes, ascending; None is all.
      num_threads: of all parts together; None is one a core, or two an image process.
      prefetch: batches that are filled ahead; each is held in memory.

    Raises:
      UserError: parts differ in the shape of image or text.
      ValueError: a value is out of range.
    """

    def __init__(
        self,
        loaders: Mapping[str, TrainLoader],
        rows: Int[np.ndarray, " r"] | None = None,
        num_threads: int | None = None,
        prefetch: int = 4,
    ):
        parallel.check_at_least(1, parts=len(loaders), prefetch=prefetch)
        self.loaders = dict(loaders)
        counts = {name: loader.batch_size for name, loader in loaders.items()}
        self.batch_size = sum(counts.values())
        self._rows = parallel.check_rows(rows, self.batch_size)
        self._parts, self._places = interleave(counts)
        self._work = self._group_rows()
        self._check_shapes()
        first = next(iter(loaders.values()))
        self.row = first.row
        self._prefetch = prefetch
        processes = sum(loader.num_processes for loader in loaders.values())
        self._workers = parallel.Workers(num_threads or 2 * processes or None)

    @property
    def num_examples(self) -> int:
        """Examples of all parts."""
        return sum(loader.num_examples for loader in self.loaders.values())

    @property
    def steps_per_epoch(self) -> float:
        """Global batches that hold as many examples as there are; see `epochs` for each part."""
        return self.num_examples / self.batch_size

    @property
    def broken(self) -> int:
        """Examples that this process knows to be broken."""
        return sum(loader.broken for loader in self.loaders.values())

    @property
    def shards(self) -> dict[str, str]:
        """What each shard of each part is called and holds, by its place in the order."""
        return {
            f"{part}, {number}": shard
            for part, loader in self.loaders.items()
            for number, shard in loader.shards.items()
        }

    def epochs(self, step: int) -> dict[str, float]:
        """Returns how often each part has been gone through before a step."""
        return {
            f"epoch/{name}": epoch
            for name, loader in self.loaders.items()
            for epoch in loader.epochs(step).values()
        }

    def batch(self, step: int) -> HostBatch:
        """Makes this process's rows of the global batch of a step."""
        return self._start(step).result()

    def iterate(self, start_step: int) -> Iterator[HostBatch]:
        """Yields the batches from a step on, filled ahead in threads."""
        steps = iter(range(start_step, np.iinfo(np.int64).max))
        return parallel.take_ahead(map(self._start, steps), self._prefetch + 1)

    def close(self) -> None:
        """Ends threads and processes, those of the parts too; it cannot be used again."""
        self._workers.close()
        for loader in self.loaders.values():
            loader.close()

    def __enter__(self) -> "MixtureLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, step: int) -> parallel.Filling:
        def job(batch: HostBatch, begin: int, end: int) -> None:
            here = self._work[begin:end]
            for number, loader in enumerate(self.loaders.values()):
                rows = here[self._parts[self._rows[here]] == number]
                if len(rows):
                    loader.fill(batch, step, self._places[self._rows[rows]], rows)
                    if loader.classes is None:
                        batch["label"][rows] = examples.NO_LABEL

        batch = empty_batch(len(self._rows), self.row)
        return self._workers.fill(batch, len(self._rows), job)

    def _group_rows(self) -> Int[np.ndarray, " r"]:
        """Orders this process's rows for the threads: jobs are mostly of one part, in turns.

        A job of one part costs what it costs its loader alone; turns keep the image processes of
        all parts busy.
        """
        rows = np.arange(len(self._rows))
        turns = rows // (parallel.CHUNK_MAX * len(self.loaders))
        return np.lexsort((rows, self._parts[self._rows], turns))

    def _check_shapes(self) -> None:
        (one, first), *others = self.loaders.items()
        for other, loader in others:
            for name in sorted(first.row.keys() | loader.row.keys()):
                here, there = (x.row.get(name, ("none at all",))[0] for x in (first, loader))
                if here != there:
                    raise UserError(
                        f"the shape of {name} is {here} in {one} and {there} in {other}; all parts "
                        f"must have one: change {REMEDIES.get(name, 'joined')} of one of them"
                    )
