"""Finds the nearest of other images by cosine, exactly or within the nearest buckets of k-means.

This module knows only arrays, and objects that read rows of them a block at a time. ALIGN's
Appendix A has 4000 clusters and takes the 10 nearest of both images, of which 3 must be the same;
here one image is only in its nearest bucket, and the other looks into several.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, check_at_least
from big_align.use.clusters.kmeans import approximate_centers
from big_align.use.clusters.kmeans_init import Sample, scale_rows
from big_align.use.clusters.nearest_centers import CHUNK, NearestCenters

EXACT_BELOW = 50_000
"""With fewer images, comparing with all of them costs less than embedding what is compared."""
PROBES = 10
BLOCK = 2048
"""Rows that are compared with the same number of others at a time inside a bucket."""


class Buckets(NamedTuple):
    """How images are divided."""

    count: int  # 1 compares with all images
    probes: int  # buckets into which an image looks

    @classmethod
    def choose(cls, images: int, count: int | None = None, probes: int = PROBES) -> "Buckets":
        """Returns buckets for a number of images.

        Without a count it compares with all images if they are few, and else takes the number that
        makes a search cheapest.
        """
        check_at_least(1, buckets=count, probes=probes)
        if count is None:
            count = 1 if images < EXACT_BELOW else round(math.sqrt(probes * images))
        elif count > images:
            raise UserError(f"buckets = {count} are more than the {images} images in them")
        return cls(count, min(probes, count))


class Nearest(NamedTuple):
    """The nearest image of each of some images, the first of equal ones; -1 if there is none."""

    cosine: Float[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]

    @classmethod
    def none(cls, count: int) -> "Nearest":
        """Returns a result in which none of `count` images has one yet."""
        return cls(np.full(count, -1, np.float32), np.full(count, -1, np.int64))

    def offer(
        self,
        images: Int[np.ndarray, " q"],
        cosine: Float[np.ndarray, " q"],
        number: Int[np.ndarray, " q"],
    ) -> None:
        """Replaces, in place, what some images have by what is nearer, or as near but earlier."""
        same = (cosine == self.cosine[images]) & (number < self.number[images])
        better = (cosine > self.cosine[images]) | same
        self.cosine[images[better]] = cosine[better]
        self.number[images[better]] = number[better]


class UnitRows:
    """Rows at unit length; those that are not finite, or are left out, are zero."""

    def __init__(self, rows: Any, left_out: Bool[np.ndarray, " n"] | None = None):
        self._rows, self._left_out = rows, left_out
        self.count, self.dim = rows.count, rows.dim

    @functools.cached_property
    def absent(self) -> int:
        """The number of rows that are zero."""
        starts = range(0, self.count, CHUNK)
        blocks = (self.read(first, min(first + CHUNK, self.count)) for first in starts)
        return sum(int((~block.any(axis=1)).sum()) for block in blocks)

    def read(self, first: int, end: int) -> Float[np.ndarray, "m d"]:
        """Returns rows [first, end)."""
        gone = None if self._left_out is None else self._left_out[first:end]
        return self._scale(self._rows.read(first, end), gone)

    def take(self, numbers: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        """Returns chosen rows."""
        gone = None if self._left_out is None else self._left_out[numbers]
        return self._scale(self._rows.take(numbers), gone)

    def name(self, number: int) -> str:
        """Names a row for messages."""
        return f"image {number}"

    def _scale(
        self, rows: Float[np.ndarray, "m d"], gone: Bool[np.ndarray, " m"] | None
    ) -> Float[np.ndarray, "m d"]:
        rows = np.float32(rows)
        out = ~np.isfinite(rows).all(axis=1)
        if gone is not None:
            out |= gone
        return scale_rows(np.where(out[:, None], np.float32(0), rows))


Centers = Float[np.ndarray, "k d"]


class NearestFinder:
    """Finds the nearest of some images, which are held in memory, divided into the buckets.

    They have `count`, `dim`, `read(first, end)` and `take(numbers)`. `keep` may keep the centers of
    the buckets, or have others: it gets what makes them.
    """

    def __init__(
        self,
        others: Any,
        buckets: Buckets,
        mesh: Mesh,
        chunk: int | None = None,
        keep: Callable[[Callable[[], Centers]], Centers] = lambda make: make(),
    ):
        self._dim, self._buckets = others.dim, buckets
        values = UnitRows(others).read(0, others.count)
        self._present = np.flatnonzero(values.any(axis=1))
        if not len(self._present):
            raise UserError("there are no images to compare with: none could be read")
        self._values = values[self._present]
        if buckets.count == 1:
            self._search = NearestCenters(self._values, mesh, 1, chunk=chunk)
            return
        sample = Sample(self._values)
        centers = keep(lambda: approximate_centers(sample, buckets.count, mesh))
        self._members = _list_members(_label(sample, centers, mesh, 1)[:, 0], buckets.count)
        self._search = NearestCenters(centers, mesh, buckets.probes, chunk=chunk)

    def find(self, rows: Any) -> Iterator[tuple[int, Nearest]]:
        """Yields the first row of each chunk, and for each of its rows the nearest image.

        Rows of zeros, and rows that are not finite, have no nearest image and are never one. The
        rows are as the images are, and are read a chunk at a time.
        """
        if rows.dim != self._dim:
            raise UserError(f"rows of {rows.dim} and of {self._dim} numbers cannot be compared")
        rows, first = UnitRows(rows), 0
        for cosine, label in self._search(rows):
            x = rows.read(first, first + len(label))
            nearest = Nearest(cosine[:, 0], label[:, 0].astype(np.int64))
            if self._buckets.count > 1:
                nearest = self._search_buckets(x, label)
            there = x.any(axis=1) & (nearest.number >= 0)
            number = np.where(there, self._present[nearest.number], -1)
            yield first, Nearest(np.where(there, nearest.cosine, np.float32(-1)), number)
            first += len(number)

    def _search_buckets(
        self, x: Float[np.ndarray, "n d"], probed: Int[np.ndarray, "n p"]
    ) -> Nearest:
        """Returns the nearest of each row among the images in the buckets nearest to it."""
        nearest = Nearest.none(len(probed))
        for bucket, images in enumerate(_list_members(probed, self._buckets.count)):
            members = self._members[bucket]
            if len(images) and len(members):
                cosine = x[images] @ self._values[members].T
                nearest.offer(images, cosine.max(1), members[cosine.argmax(1)])
        return nearest


def find_nearest(
    rows: Any, others: Any, buckets: Buckets, mesh: Mesh, chunk: int | None = None
) -> Iterator[tuple[int, Nearest]]:
    """Yields the first row of each chunk, and for each of its rows the nearest of other rows."""
    return NearestFinder(others, buckets, mesh, chunk).find(rows)


def find_earlier(
    rows: Any, buckets: Buckets, mesh: Mesh, left_out: Bool[np.ndarray, " n"] | None = None
) -> Nearest:
    """Finds, for each row, the nearest of the rows before it.

    A row near an earlier one is a near-duplicate, so the first of a group stays, and so does the
    row that a chain of near-duplicates leads back to (SemDeDup: Abbas et al. 2023). Rows are read
    bucket by bucket; only a few bytes are kept for each row.
    """
    rows = UnitRows(rows, left_out)
    nearest = Nearest.none(rows.count)
    if rows.absent == rows.count:
        return nearest
    if buckets.count == 1:
        everything = np.arange(rows.count)
        _compare_earlier(rows, everything, everything, nearest)
    else:
        centers = approximate_centers(rows, buckets.count, mesh)
        probed = _label(rows, centers, mesh, buckets.probes)
        members = _list_members(probed[:, 0], buckets.count)
        for bucket, images in enumerate(_list_members(probed, buckets.count)):
            _compare_earlier(rows, images, members[bucket], nearest)
    found = nearest.cosine > -1
    return Nearest(nearest.cosine, np.where(found, nearest.number, -1))


def _compare_earlier(
    rows: UnitRows,
    images: Int[np.ndarray, " q"],
    members: Int[np.ndarray, " m"],
    nearest: Nearest,
) -> None:
    """Compares images with the members of a bucket that come before them, in blocks."""
    for at in range(0, len(images), BLOCK):
        some = images[at : at + BLOCK]
        x = rows.take(some)
        for start in range(0, len(members), BLOCK):
            others = members[start : start + BLOCK]
            if others[0] >= some[-1]:
                break
            y = rows.take(others)
            cosine = x @ y.T
            out = (others >= some[:, None]) | ~y.any(axis=1) | ~x.any(axis=1)[:, None]
            cosine[out] = -1
            nearest.offer(some, cosine.max(1), others[cosine.argmax(1)])


def _label(
    rows: Any, centers: Float[np.ndarray, "k d"], mesh: Mesh, probes: int
) -> Int[np.ndarray, "n p"]:
    """Returns the nearest centers of all rows, nearest first."""
    return np.concatenate([label for _, label in NearestCenters(centers, mesh, probes)(rows)])


def _list_members(labels: Int[np.ndarray, "n ..."], count: int) -> list[Int[np.ndarray, " _"]]:
    """Lists the rows of each bucket, ascending; a row may be in several."""
    width = labels[0].size if len(labels) else 1
    flat = labels.reshape(-1)
    ends = np.cumsum(np.bincount(flat, minlength=count))
    rows = np.argsort(flat, kind="stable")
    rows //= width  # in place: there may be billions
    return np.split(rows, ends[:-1])
