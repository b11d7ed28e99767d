"""A page that shows near-duplicates side by side, for judging a threshold."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from big_align.data import boundary
from big_align.data.shard_offsets import ShardOffsets
from big_align.pages.charts import Drawing
from big_align.pages.histograms import Bin, draw_histogram
from big_align.pages.rendering import Tile, render
from big_align.pages.thumbnails import read_thumbnail
from big_align.use.duplicates.embedded_files import EmbeddedFiles
from big_align.use.duplicates.twin_list import (
    BINS,
    WITHIN,
    ComparedSet,
    TwinList,
    TwinPair,
    TwinSettings,
    spread,
)

PAIRS = 20
SIDE = 240  # pixels of the longer side of a picture
FROM = 0.4  # the cosine at which histograms begin


def write_twin_page(
    found: TwinList,
    training: EmbeddedFiles,
    tests: Sequence[ComparedSet],
    settings: TwinSettings,
    told: str,
) -> str:
    """Writes a page of twenty near-duplicates, of what is just below the threshold, and of cosines.

    `told` is about the model, and how it sees images.
    """
    dropped = f"{len(found.twins):,}"
    tiles = [Tile(f"{found.images:,}", "training images looked at"), Tile(dropped, "dropped")]
    sizes = {test.name: f" ({test.files.count:,} images)" for test in tests}
    for name, count in found.counts.items():
        tiles.append(Tile(f"{count:,}", f"near {name}{sizes.get(name, '')}"))
    return render(
        "twins.html",
        title=f"{dropped} near-duplicates among {found.images:,} training images",
        told=told,
        threshold=settings.threshold,
        tiles=tiles,
        dropped=dropped,
        shown=list(_list_pairs(spread(found.twins, PAIRS), training, tests)),
        misses=list(_list_pairs(found.misses, training, tests)),
        histograms=[_draw(*each, settings.threshold) for each in found.histogram.items()],
    )


def _list_pairs(
    pairs: Sequence[TwinPair], training: EmbeddedFiles, tests: Sequence[ComparedSet]
) -> Iterator[dict[str, Any]]:
    for pair in pairs:
        files = training if pair.place < 0 else tests[pair.place].files
        name = WITHIN if pair.place < 0 else tests[pair.place].name
        twin = files.key(pair.twin) if pair.place < 0 else files.own_key(pair.twin)
        yield {
            "cosine": pair.cosine,
            "pictures": [_read_picture(training, pair.image), _read_picture(files, pair.twin)],
            "names": [training.key(pair.image), f"{name}: {twin}"],
        }


def _read_picture(files: EmbeddedFiles, number: int) -> bytes:
    def read() -> Any:
        file, row = files.locate(number)
        source = files.inputs.open(file)
        return boundary.read_example(
            source, *ShardOffsets(source.shard_sizes).locate_one(row)
        ).image

    return read_thumbnail(read, SIDE)


def _draw(name: str, counts: Int[np.ndarray, " bins"], threshold: float) -> Drawing:
    """Draws a histogram of cosines; anything below the scale is in its first bar."""
    start = round(FROM * BINS)
    bins = []
    for number, count in enumerate([counts[: start + 1].sum(), *counts[start + 1 :]], start):
        low, high = number / BINS, (number + 1) / BINS
        over = int(count) if low >= threshold else 0
        bins.append(Bin(f"{low:.3f} to {high:.3f}: {count:,}", int(count), over))
    ticks = {BINS * tick - start: f"{tick:g}" for tick in np.linspace(FROM, 1, 7).round(2).tolist()}
    return draw_histogram(name, bins, ticks, (BINS * threshold - start, ""), log=True)
