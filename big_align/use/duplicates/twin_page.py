"""A page that shows near-duplicates side by side, for judging a threshold."""

import contextlib
import html
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from big_align.data import boundary
from big_align.data.examples import BrokenExample
from big_align.data.shard_offsets import ShardOffsets
from big_align.plots.html_page import write_frame
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
from big_align.use.search.thumbnails import make_thumbnail, write_address

STYLE = """
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr));
  gap: .9rem; margin: .8rem 0 1.5rem; } .pair { overflow: hidden; } .pair > div { display: grid;
  grid-template-columns: 1fr 1fr; gap: 2px; } .pair img { display: block; width: 100%;
  height: 10rem; object-fit: contain; background: var(--mark); } .pair p { margin: .5rem .7rem;
  display: grid; grid-template-columns: 1fr 1fr; gap: .7rem; font-size: .78rem; line-height: 1.3;
  overflow-wrap: anywhere; } .pair b { display: block; margin: .5rem .7rem 0; font-weight: 600;
  font-variant-numeric: tabular-nums; }
"""
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

    Args:
      found: the near-duplicates.
      training: the images.
      tests: as in `twin_list.find_twins`.
      settings: the settings of the search.
      told: the model, and how it sees images.
    """
    many = len(found.twins)
    title = f"{many:,} near-duplicates among {found.images:,} training images"
    limit = f"{settings.threshold:g}"
    body = [f"<h1>{title}</h1><p class=soft>Cosines above {limit}, by ",
            f"<code>{html.escape(told)}</code></p><div class=tiles>",
            f"<div class=tile><b>{found.images:,}</b><span>training images looked at</span></div>",
            f"<div class=tile><b>{many:,}</b><span>dropped</span></div>"]  # fmt: skip
    for name, count in found.counts.items():
        of = next((f" ({test.files.count:,} images)" for test in tests if test.name == name), "")
        near = f"near {html.escape(name)}{of}"
        body.append(f"<div class=tile><b>{count:,}</b><span>{near}</span></div>")
    body.append("</div>")
    shown = spread(found.twins, PAIRS)
    if shown:
        body.append(
            f"<h2>What is dropped</h2><p class=soft>{len(shown)} of {many:,} pairs, spread over "
            "the range of their cosines: left the training image, right what it is near to.</p>"
        )
        body += _write_pairs(shown, training, tests)
    if found.misses:
        body.append(
            f"<h2>What just stays</h2><p class=soft>The pairs next below {limit}. If these are "
            "copies, lower <code>--threshold</code>.</p>"
        )
        body += _write_pairs(found.misses, training, tests)
    body.append(
        "<h2>Cosines</h2><p class=soft>Of every training image with the nearest image of each set; "
        f"bars are as tall as logarithms, and those above {limit} are dropped. A threshold is in "
        "the gap between copies and all others, where there is one.</p><div class=charts>"
    )
    for name, counts in found.histogram.items():
        body.append(_draw(name, counts, settings.threshold))
    return write_frame(title, STYLE, "".join([*body, "</div>"]))


def _write_pairs(
    pairs: Sequence[TwinPair], training: EmbeddedFiles, tests: Sequence[ComparedSet]
) -> Iterator[str]:
    yield "<div class=pairs>"
    for pair in pairs:
        files = training if pair.place < 0 else tests[pair.place].files
        name = WITHIN if pair.place < 0 else tests[pair.place].name
        twin = files.key(pair.twin) if pair.place < 0 else files.own_key(pair.twin)
        pictures = (_read_thumbnail(training, pair.image), _read_thumbnail(files, pair.twin))
        images = "".join(f"<img alt='' src='{picture}'>" for picture in pictures)
        yield (
            f"<figure class='card pair'><div>{images}</div><b>{pair.cosine:.4f}</b>"
            f"<p class=soft><span>{html.escape(training.key(pair.image))}</span>"
            f"<span>{html.escape(f'{name}: {twin}')}</span></p></figure>"
        )
    yield "</div>"


def _read_thumbnail(files: EmbeddedFiles, number: int) -> str:
    """Returns a small picture as a data URL, which is empty if the picture is gone."""
    file, row = files.locate(number)
    with contextlib.suppress(BrokenExample, OSError, ValueError):
        source = files.inputs.open(file)
        image = boundary.read_example(source, *ShardOffsets(source.shard_sizes).locate_one(row))
        return write_address(make_thumbnail(image.image, SIDE))
    return "data:,"


def _draw(name: str, counts: Int[np.ndarray, " bins"], threshold: float) -> str:
    """Draws a histogram of cosines as SVG; anything below the scale is in its first bar."""
    start = round(FROM * BINS)
    counts = np.array([counts[: start + 1].sum(), *counts[start + 1 :]])
    edges = (start + np.arange(len(counts))) / BINS
    tall = 110 * np.log1p(counts) / max(np.log1p(counts).max(), 1)
    wide = 460 / len(counts)

    def place(cosine: float) -> float:
        return 20 + 460 * (cosine - FROM) / (1 - FROM)

    bars = "".join(
        f"<rect class={'over' if edge >= threshold else 'bar'} x='{place(edge):.1f}' y='"
        f"{130 - height:.1f}' width='{wide - 0.6:.1f}' height='{height:.1f}'><title>{edge:.3f} to "
        f"{edge + 1 / BINS:.3f}: {count:,}</title></rect>"
        for edge, height, count in zip(edges.tolist(), tall.tolist(), counts.tolist(), strict=True)
        if count
    )
    ticks = "".join(
        f"<text x='{place(tick):.1f}' y=147 text-anchor=middle>{tick:g}</text>"
        for tick in np.linspace(FROM, 1, 7).round(2).tolist()
    )
    at = f"{place(threshold):.1f}"
    return (
        f"<figure class='card chart'><figcaption>{html.escape(name)}</figcaption><svg viewBox='0 0 "
        f"500 155' role=img aria-label='cosines with {html.escape(name)}'>{bars}<line x1=20 x2=480 "
        f"y1=130.5 y2=130.5 /><line class=mark x1={at} x2={at} y1=12 y2=130 />{ticks}</svg>"
        "</figure>"
    )
