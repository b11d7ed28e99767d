"""The list of training images that are near-duplicates of test images, or of each other."""

import collections
import dataclasses
import heapq
import posixpath
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.core.progress import make_bar
from big_align.prepare.inputs import Inputs
from big_align.use.duplicates.embedded_files import EmbeddedFiles
from big_align.use.duplicates.twins import PROBES, Buckets, Nearest, find_earlier, find_nearest

THRESHOLD = 0.85
WITHIN = "another training image"
BINS = 200  # of the histogram of cosines, from 0 to 1
MISSES = 10
SHARD = re.compile(
    r"(?P<name>.*?)(?:[-_.]?(?<!\d)(?=0\d\d)|[-_.]|^)(?P<number>\d+)(?:[-_]of[-_]\d+)?"
)
"""The name of a shard: a number behind a separator, or one with zeros before it."""


class TwinPair(NamedTuple):
    """A training image and the image that it is near to.

    Attributes:
      cosine: the cosine of their embeddings.
      image: the number of the training image.
      place: the index of the test set among all; -1 for the training images themselves.
      twin: the number of the other image there.
    """

    cosine: float
    image: int
    place: int
    twin: int


class ComparedSet(NamedTuple):
    """A test set: the shards with one name.

    Attributes:
      name: the name of its files, without the number of the shard.
      files: its embedded images.
    """

    name: str
    files: EmbeddedFiles


@dataclasses.dataclass
class TwinSettings:
    """What counts as a near-duplicate, and where to look for one.

    Attributes:
      threshold: cosines above it are near-duplicates.
      within: whether training images are compared with each other as well.
      buckets: see `Buckets.choose`.
      probes: buckets that are searched for an image.
      seed: the seed of k-means.

    Raises:
      UserError: the threshold is not a cosine between 0 and 1, or `buckets` or `probes` is below 1.
    """

    threshold: float = THRESHOLD
    within: bool = False
    buckets: int | None = None
    probes: int = PROBES
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise UserError(f"--threshold={self.threshold:g} must be above 0 and below 1, a cosine")
        Buckets.choose(10**9, self.buckets, self.probes)


@dataclasses.dataclass
class TwinList:
    """What a search has found.

    Attributes:
      images: training images that were looked at.
      twins: the nearest image of each image that is dropped, in the order of the images.
      counts: images near an image of each test set, or near another training image.
      histogram: for each test set, how many images have a nearest one with a cosine in each of
        200 bins from 0 to 1.
      misses: pairs just below the threshold, the nearest first.
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
    training: EmbeddedFiles, tests: Sequence[ComparedSet], settings: TwinSettings, mesh: Mesh
) -> TwinList:
    """Finds near-duplicates among training images.

    Images near a test image are dropped first, and then take no part in the comparison of training
    images with each other, of which the first one stays.

    Args:
      training: the training images, read in blocks; only the results are kept in memory, and with
        `settings.within` a few bytes per image.
      tests: test sets, each of which is held in memory in its turn.
      settings: the settings of the search.
      mesh: the devices.
    """
    found = TwinList(training.count)
    best: dict[int, TwinPair] = {}
    for place, test in enumerate(tests):
        buckets = _choose_buckets(test.files, settings)
        counts, count = np.zeros(BINS, np.int64), 0
        with make_bar(desc=f"compare with {test.name}", total=training.count, unit="image",
                  dynamic_ncols=True) as bar:  # fmt: skip
            nearest = find_nearest(training, test.files, buckets, mesh, seed=settings.seed)
            for first, block in nearest:
                twins, misses = _part(block, first, place, settings.threshold)
                for twin in twins:
                    best[twin.image] = max(best.get(twin.image, twin), twin)
                count += len(twins)
                _note(found, counts, block, misses)
                bar.update(len(block.cosine))
        found.counts[test.name], found.histogram[test.name] = count, counts
    if settings.within:
        gone = np.zeros(training.count, bool)
        gone[list(best)] = True
        buckets = _choose_buckets(training, settings)
        nearest = find_earlier(training, buckets, mesh, gone, settings.seed)
        twins, misses = _part(nearest, 0, -1, settings.threshold)
        best |= {twin.image: twin for twin in twins}
        counts = np.zeros(BINS, np.int64)
        _note(found, counts, nearest, misses)
        found.counts[WITHIN], found.histogram[WITHIN] = len(twins), counts
    found.twins = [best[image] for image in sorted(best)]
    found.misses = [miss for miss in sorted(found.misses, reverse=True) if miss.image not in best]
    return found


def _choose_buckets(files: EmbeddedFiles, settings: TwinSettings) -> Buckets:
    present = files.count - files.count_broken()
    return Buckets.choose(present, settings.buckets, settings.probes)


def _part(
    block: Nearest, first: int, place: int, threshold: float
) -> tuple[list[TwinPair], list[TwinPair]]:
    """Returns the near-duplicates of a block, and the pairs just below the threshold."""
    below = np.where(block.cosine > threshold, -1, block.cosine)
    chosen = [np.flatnonzero(block.cosine > threshold), np.argsort(-below)[:MISSES]]
    chosen[1] = chosen[1][below[chosen[1]] > 0]
    return tuple(
        [TwinPair(float(block.cosine[n]), first + n, place, int(block.number[n])) for n in rows]
        for rows in (each.tolist() for each in chosen)
    )


def _note(
    found: TwinList, counts: Int[np.ndarray, " bins"], block: Nearest, misses: list[TwinPair]
) -> None:
    """Counts the cosines of a block in bins, and keeps the pairs that are just below."""
    bins = np.clip((block.cosine[block.number >= 0] * BINS).astype(int), 0, BINS - 1)
    counts += np.bincount(bins, minlength=BINS)
    found.misses = heapq.nlargest(MISSES, [*found.misses, *misses])


def write_entries(
    found: TwinList, training: EmbeddedFiles, tests: Sequence[ComparedSet], own_keys: bool = False
) -> list[dict[str, Any]]:
    """Returns the entries of the list, as `tools.prepare --drop` reads them.

    Args:
      found: the near-duplicates.
      training: the images.
      tests: as in `find_twins`.
      own_keys: whether a key is the one that the image has in its file; else it names the row.

    Raises:
      UserError: an image has no key of its own.
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
