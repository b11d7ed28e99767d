"""A page about data, in a single file: counts, faults, sizes, texts, duplicates, and pictures."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from big_align.data.loading.inspection import Picture, Report
from big_align.data.text.shortening import BLOCK, RANDOM, SYNTAX, TRUNCATE
from big_align.pages.charts import Drawing
from big_align.pages.histograms import Bin, draw_histogram
from big_align.pages.rendering import Tile, format_percent, render

SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|startoftext|>", "<|endoftext|>"}
KEPT = {
    TRUNCATE: "cut",
    RANDOM: "random ones are kept",
    BLOCK: "a random block is kept",
    SYNTAX: "nouns are kept first",
}
BINS = 30


def write_page(title: str, command: str, parts: Sequence[tuple[str, str, Report]]) -> str:
    """Writes a page about the parts of some data, as HTML that needs no other files.

    `command` has the flags that name the data. Each part has a name, a description and a report.
    """
    shown = [
        {
            "name": name,
            "description": description,
            "report": report,
            "tiles": summarize(report),
            "faults": [[f"{x.count:,}", x.reason, x.name] for x in report.faults],
            "histograms": list(_draw_histograms(report)),
            "pictures": [
                (each, list(_mark_texts(each, report.length))) for each in report.pictures
            ],
        }
        for name, description, report in parts
    ]
    return render("data.html", title=title, command=command, parts=shown)


def summarize(report: Report) -> list[Tile]:
    """Returns the important numbers."""
    broken = sum(fault.count for fault in report.faults)
    looked = "all" if report.read == report.examples else f"a sample of {report.read:,}"
    shards = f"{report.shards:,} shard{'s' * (report.shards != 1)}"
    tiles = [Tile(f"{report.examples:,}", f"examples in {shards}; read: {looked}")]
    if report.lost:
        tiles.append(Tile(f"{report.lost:,}", "incomplete examples, which are left out", True))
    share = format_percent(broken, report.read)
    tiles.append(Tile(f"{broken:,}", f"broken ({share})", broken > 0))
    if len(report.sizes):
        width, height = np.median(report.sizes, axis=0)
        tiles.append(Tile(f"{width:.0f} × {height:.0f}", "median width and height in pixels"))
    if report.captions.sum():
        tiles.append(Tile(f"{report.captions.mean():.3g}", "captions an image on average"))
    if len(report.tokens):
        tiles.append(Tile(f"{np.median(report.tokens):.0f}", "tokens a text (median)"))
        share = format_percent(report.cut, len(report.tokens))
        what = f"of texts longer than {report.length} tokens: {KEPT[report.shorten]}"
        tiles.append(Tile(share, what, report.cut > 0))
        share = format_percent(report.unknown, int(report.tokens.sum()))
        tiles.append(Tile(share, "of tokens unknown to the tokenizer", report.unknown > 0))
    for what, found in (("image", report.images_twice), ("caption", report.captions_twice)):
        if found.total:
            share = format_percent(found.count, found.total)
            repeated = f"{what}s that repeat another ({share})"
            tiles.append(Tile(f"{found.count:,}", repeated, found.count > 0))
    if report.labels:
        tiles.append(Tile(f"{len(report.labels):,}", "different labels"))
    return tiles


def _draw_histograms(report: Report) -> Iterator[Drawing]:
    if len(report.tokens):
        note = "cut above" if report.shorten == TRUNCATE else "shortened above"
        yield _draw("Tokens of a text", report.tokens, report.length, note, cut=True)
    if len(report.sizes):
        seen = min(report.pictures[0].pixels.shape[:2]) if report.pictures else 0
        yield _draw(
            "Shorter side of an image, pixels", report.sizes.min(axis=1), seen, "model sees"
        )


def _draw(
    title: str, values: Int[np.ndarray, " n"], mark: int, note: str, cut: bool = False
) -> Drawing:
    """Draws a histogram with a mark that some values may exceed; a mark of 0 is none.

    The largest hundredth shares the last bar. With `cut`, whatever is above the mark is lost.
    """
    top = max(float(np.percentile(values, 99)), mark * 1.1, 1)
    width = max(1, math.ceil(top / BINS))
    edges = np.arange(0, math.ceil(top / width) * width + width, width)
    counts, _ = np.histogram(np.minimum(values, edges[-1] - 0.5), edges)
    bins = [
        Bin(f"{low} to {low + width - 1}: {count:,}", count, count * (cut and 0 < mark < low))
        for low, count in zip(edges[:-1].tolist(), counts.tolist(), strict=True)
    ]
    end = int(edges[-1])
    step = next(n for p in range(9) for n in (10**p, 2 * 10**p, 5 * 10**p) if 6 * n >= end)
    ticks = {value / width: f"{value:,}" for value in range(0, end + 1, step)}
    place = (mark + cut) / width  # the last value that is not cut has a bar
    return draw_histogram(title, bins, ticks, (place, f"{note} {mark}") if mark else None)


def _mark_texts(picture: Picture, length: int) -> Iterator[list[tuple[str, str]]]:
    """Yields the tokens of each text with their kinds, as `_mark_tokens` does."""
    if not picture.kept:
        yield from (list(_mark_tokens(tokens, length)) for tokens in picture.texts)
        return
    for tokens, kept in zip(picture.texts, picture.kept, strict=True):
        own = [place for place, token in enumerate(tokens) if token not in SPECIAL]
        lost = set(own) - {own[n] for n in kept if n < len(own)}
        yield [
            ("special" if token in SPECIAL else "cut" if place in lost else "", token)
            for place, token in enumerate(tokens)
        ]


def _mark_tokens(tokens: Sequence[str], length: int) -> Iterator[tuple[str, str]]:
    """Yields each token with its kind: "special", "cut" or "".

    In texts that are cut off, the end mark is not the text's own.
    """
    kept = len(tokens) if len(tokens) <= length else length - (tokens[-1] in SPECIAL)
    for place, token in enumerate(tokens):
        kind = "special" if token in SPECIAL else "cut" if place >= kept else ""
        yield kind, token
