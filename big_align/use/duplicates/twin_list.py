"""The list of training images that are near-duplicates of test images, or of each other."""

import collections
import dataclasses
import heapq
import pathlib
import posixpath
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.prepare.inputs import Inputs
from big_align.use.duplicates.compared_files import Comparisons
from big_align.use.duplicates.embedded_files import EmbeddedFiles
from big_align.use.duplicates.twins import PROBES, Buckets, Nearest, find_earlier

THRESHOLD = 0.85
WITHIN = "another training image"
BINS = 200  # of the histogram of cosines, from 0 to 1
MISSES = 10
SHARD = re.compile(
    r"(?P<name>.*?)(?:[-_.]?(?<!\d)(?=0\d\d)|[-_.]|^)(?P<number>\d+)(?:[-_]of[-_]\d+)?"
)
"""The name of a shard: a number behind a separator, or one with zeros before it."""


class TwinPair(NamedTuple):
    """A training image and the image that it is near to."""

    cosine: float
    image: int  # the number of the training image
    place: int  # the index of its test set among all; -1 for the training images themselves
    twin: int  # the number of the other image there


class ComparedSet(NamedTuple):
    """A test set: the shards with one name, without their numbers, and their embedded images."""

    name: str
    files: EmbeddedFiles


@dataclasses.dataclass
class TwinSettings:
    """What counts as a near-duplicate, and where to look for one."""

    threshold: float = THRESHOLD  # cosines above it are near-duplicates
    within: bool = False  # whether training images are compared with each other as well
    buckets: int | None = None  # see `Buckets.choose`
    probes: int = PROBES  # buckets that are searched for an image

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise UserError(f"--threshold={self.threshold:g} must be above 0 and below 1, a cosine")
        Buckets.choose(10**9, self.buckets, self.probes)


@dataclasses.dataclass
class TwinList:
    """What a search has found.

    For each test set, or `WITHIN`, there are counts of images near one of it, and histograms of the
    cosines with the nearest of it, in 200 bins from 0 to 1. `misses` are pairs just below the
    threshold, the nearest first; `twins` are in the order of the images that are dropped.
    """

    images: int
    twins: list[TwinPair] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    histogram: dict[str, Int[np.ndarray, " bins"]] = dataclasses.field(default_factory=dict)
    misses: list[TwinPair] = dataclasses.field(default_factory=list)


def part_sets(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """Splits files into test sets; files of a folder whose names differ in a shard number are one.

    Shards are numbered from 0 or 1, so that voc_2007 and voc_2012 are two sets.
    """
    shards: dict[tuple[str, str], dict[int, int]] = {}
    for number, stem in enumerate(inputs.stems):
        if match := re.fullmatch(SHARD, stem):
            place = posixpath.dirname(inputs.paths[number]), match["name"]
            shards.setdefault(place, {})[number] = int(match["number"])
    names: dict[tuple[str, str], list[int]] = {}
    sets = {n: place for place, found in shards.items() if min(found.values()) < 2 for n in found}
    for number, stem in enumerate(inputs.stems):
        folder, name = sets.get(number, ("", stem))
        if not name or name.isdecimal():  # `cifar10/test/0.tar`: the folder says more
            name = (folder or posixpath.dirname(inputs.paths[number])).strip("/") or stem
        names.setdefault((folder, name), []).append(number)
    fields = "paths", "stems", "stamps"
    return [
        (name, dataclasses.replace(inputs, **{
            field: tuple(getattr(inputs, field)[n] for n in numbers) for field in fields
        }))
        for (_, name), numbers in names.items()
    ]  # fmt: skip


def name_apart(parts: Sequence[tuple[str, Inputs]]) -> list[tuple[str, Inputs]]:
    """Puts its folder before a name that several test sets have."""
    often = collections.Counter(name for name, _ in parts)
    named, taken = [], set()
    for name, inputs in parts:
        folder = posixpath.dirname(inputs.paths[0])
        told = posixpath.join(folder, name) if often[name] > 1 else name
        while told in taken:
            told += "+"
        taken.add(told)
        named.append((told, inputs))
    return named


def find_twins(
    training: EmbeddedFiles,
    tests: Sequence[ComparedSet],
    settings: TwinSettings,
    folder: pathlib.Path,
    mesh: Mesh,
) -> TwinList | None:
    """Finds near-duplicates among training images; None if other processes still compare them.

    Images near a test image are dropped first, and then take no part in the comparison of training
    images with each other, of which the first one stays. Training images are read in blocks; each
    test set is held in memory in its turn. The folder keeps what is nearest to each.
    """
    buckets = [_choose_buckets(test.files, settings) for test in tests]
    comparisons = Comparisons(training, [test.files for test in tests], buckets, folder, mesh)
    if not comparisons.compare():
        return None
    found = TwinList(training.count)
    best: dict[int, TwinPair] = {}
    for place, test in enumerate(tests):
        found.counts[test.name], found.histogram[test.name] = 0, np.zeros(BINS, np.int64)
        for first, block in comparisons.read(place):
            for twin in _take(found, test.name, block, first, place, settings.threshold):
                best[twin.image] = max(best.get(twin.image, twin), twin)
    if settings.within:
        gone = np.zeros(training.count, bool)
        gone[list(best)] = True
        buckets = _choose_buckets(training, settings)
        found.counts[WITHIN], found.histogram[WITHIN] = 0, np.zeros(BINS, np.int64)
        nearest = find_earlier(training, buckets, mesh, gone)
        twins = _take(found, WITHIN, nearest, 0, -1, settings.threshold)
        best |= {twin.image: twin for twin in twins}
    found.twins = [best[image] for image in sorted(best)]
    found.misses = [miss for miss in sorted(found.misses, reverse=True) if miss.image not in best]
    return found


def _choose_buckets(files: EmbeddedFiles, settings: TwinSettings) -> Buckets:
    present = files.count - files.count_broken()
    return Buckets.choose(present, settings.buckets, settings.probes)


def _take(
    found: TwinList, name: str, block: Nearest, first: int, place: int, threshold: float
) -> list[TwinPair]:
    """Counts a block under a name, and keeps pairs just below; returns its near-duplicates."""
    cosine, number = block
    below = np.where(cosine > threshold, -1, cosine)
    nearest = np.argsort(-below)[:MISSES]
    twins, misses = (
        [TwinPair(float(cosine[n]), first + n, place, int(number[n])) for n in rows.tolist()]
        for rows in (np.flatnonzero(cosine > threshold), nearest[below[nearest] > 0])
    )
    bins = np.clip((cosine[number >= 0] * BINS).astype(int), 0, BINS - 1)
    found.histogram[name] += np.bincount(bins, minlength=BINS)
    found.counts[name] += len(twins)
    found.misses = heapq.nlargest(MISSES, [*found.misses, *misses])
    return twins


def write_entries(
    found: TwinList, training: EmbeddedFiles, tests: Sequence[ComparedSet], own_keys: bool = False
) -> list[dict[str, Any]]:
    """Returns the entries of the list, as `tools.prepare --drop` reads them.

    A key names the row of an image, or is its own key in its file.
    """
    key, entries = training.own_key if own_keys else training.key, []
    for twin in found.twins:
        within = twin.place < 0
        name = WITHIN if within else tests[twin.place].name
        other = key(twin.twin) if within else tests[twin.place].files.own_key(twin.twin)
        entries.append({
            "key": key(twin.image),
            "reason": f"near-duplicate of {name}",
            "twin": other,
            "cosine": round(twin.cosine, 4),
        })  # fmt: skip
    return entries


def tell(found: TwinList, broken: int, tests: Sequence[ComparedSet]) -> str:
    """Returns what was found, in a line for all and one for each test set."""
    sizes = {test.name: f" ({test.files.count:,} images)" for test in tests}
    lost = f", {broken:,} of them broken" if broken else ""
    lines = [f"{found.images:,} images looked at{lost}; {len(found.twins):,} are near-duplicates"]
    for name, count in found.counts.items():
        lines.append(f"  {count:>10,}  of {name}{sizes.get(name, '')}")
    return "\n".join(lines)


def spread(twins: Sequence[TwinPair], count: int) -> list[TwinPair]:
    """Chooses pairs evenly over the range of their cosines, the largest first."""
    left = sorted(twins, reverse=True)
    if len(left) <= count:
        return left
    cosines: Float[np.ndarray, " n"] = np.array([twin.cosine for twin in left])
    chosen: list[int] = []
    for wanted in np.linspace(cosines[0], cosines[-1], count):
        away = np.abs(cosines - wanted)
        away[chosen] = np.inf
        chosen.append(int(away.argmin()))
    return [left[n] for n in sorted(chosen)]
