"""The report of a job: what each rule dropped and why, in one page."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from big_align.data import boundary
from big_align.data.shared import storage
from big_align.pages.charts import Drawing
from big_align.pages.histograms import Bin, draw_histogram
from big_align.pages.rendering import Tile, format_percent, render
from big_align.pages.thumbnails import read_thumbnail
from big_align.prepare.inputs import FileRows
from big_align.prepare.plan import JobPlan

THUMBNAIL = 160  # pixels of the longer side
TEXT_SHOWN = 160  # characters
BARS = 40


def write_report(plan: JobPlan, statistics: dict[str, Any]) -> None:
    """Writes the report of a job into its output."""
    samples = storage.read_json(storage.join(plan.decisions, "samples.json"))
    paths = plan.inputs.paths
    pairs, faults = statistics["pairs"], statistics["quarantined_by_kind"]
    several = f"{paths[0]} to {paths[-1]}: {len(paths):,} files"
    page = render(
        "prepared.html",
        title="Dry run: what the rules would take" if plan.sample else "Prepared pairs",
        told=f"{plan.inputs.kind} {paths[0] if len(paths) == 1 else several}",
        found=statistics,
        tiles=_list_tiles(statistics),
        flow=list(_list_flow(statistics)),
        rules=[
            [
                name,
                rule["drops"],
                f"{rule['fails']:,}",
                format_percent(rule["fails"], pairs),
                f"{rule['first']:,}",
            ]
            for name, rule in statistics["rules"].items()
        ],  # fmt: skip
        faults=[
            [f"{count:,}", kind]
            for kind, count in sorted(faults.items(), key=lambda each: (-each[1], each[0]))
        ],
        histograms=list(_draw_histograms(plan, statistics)),
        languages=_list_languages(statistics["languages"]),
        samples=list(_list_samples(plan, statistics, samples)),
    )
    storage.write_text(plan.result("report.html"), page)


def _list_tiles(statistics: dict[str, Any]) -> list[Tile]:
    pairs, kept = statistics["pairs"], statistics["kept_pairs"]
    texts = f"{'about ' * bool(statistics['sketches'])}{statistics['different_texts']:,}"
    quarantined = statistics["quarantined"]
    kept_in = "dry_run_quarantine.jsonl" if statistics["sampled"] else "quarantine.jsonl"
    tiles = [
        Tile(f"{pairs:,}", "raw pairs that can be read"),
        Tile(f"{statistics['different_images']:,}", "different images among them"),
        Tile(texts, "different texts"),
        Tile(f"{kept:,}", f"pairs kept ({format_percent(kept, pairs)})", kept == 0),
        Tile(f"{statistics['kept_images']:,}", "images kept"),
        Tile(f"{statistics['bytes'] / 2**20:,.1f} MB", "of image files"),
        Tile(f"{quarantined:,}", f"cannot be used: {kept_in}", quarantined > 0),
    ]
    if not statistics["sampled"]:
        tiles.append(Tile(f"{statistics['shards']:,}", "shards"))
    return tiles


def _list_flow(statistics: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    """Yields what is left after each rule, in their order: name, percentage, and a note."""
    total = left = statistics["pairs"]
    yield "raw", 100, f"{left:,}"
    for name, rule in statistics["rules"].items():
        left -= rule["first"]
        yield name, 100 * left / max(total, 1), f"{left:,} left, {rule['first']:,} dropped"


def _list_languages(languages: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table of languages, those with the most pairs first."""
    sampled = any("rate" in found for found in languages.values())
    rows = []
    for name, found in sorted(languages.items(), key=lambda each: -each[1]["pairs"]):
        row = [name, f"{found['pairs']:,}", f"{found['kept']:,}"]
        row += [format_percent(found["kept"], found["pairs"]), f"{found['dropped']:,}"]
        if sampled:
            row += [f"{found['sampled_out']:,}", f"{found['rate']:.3g}"]
        rows.append(row)
    more = ["of these by sampling", "rate"] if sampled else []
    return {"head": ["language", "pairs", "kept", "of all", "dropped", *more], "rows": rows}


def _draw_histograms(plan: JobPlan, statistics: dict[str, Any]) -> Iterator[Drawing]:
    """Draws histograms; bars beyond a rule's number are those that it drops."""
    found, rules = statistics["histograms"], plan.rules
    side, aspect = rules.min_side, rules.max_aspect
    least, most = rules.min_unigrams, rules.max_unigrams
    yield _draw(
        "Shorter side of an image, pixels", found["shorter_side"],
        lambda n: side is not None and n <= side, side or 0,
    )  # fmt: skip
    yield _draw(
        "Longer side, in shorter ones", found["aspect_ratio_tenths"],
        lambda n: aspect is not None and n >= 10 * aspect, int(10 * (aspect or 0)), 10,
    )  # fmt: skip
    yield _draw(
        "Unigrams of a text", found["unigrams_of_a_text"],
        lambda n: n < (least or 0) or most is not None and n > most, most or least or 0,
    )  # fmt: skip
    for title, name, limit in (
        ("Images of a text", "images_of_a_text", rules.max_images),
        ("Texts of an image", "texts_of_an_image", rules.max_texts),
    ):
        over = lambda n, limit=limit: limit is not None and n > limit  # noqa: E731
        yield _draw(f"{title} (bars are logarithms)", found[name], over, log=True)


def _draw(
    title: str,
    histogram: Mapping[Any, int],
    dropped: Callable[[int], bool],
    least: int = 0,
    unit: int = 1,
    log: bool = False,
) -> Drawing:
    """Draws a histogram, how often each whole number occurs.

    Args:
      title: above it.
      histogram: the counts of numbers.
      dropped: returns whether a rule drops a number.
      least: a number that is always shown, however few are above it.
      unit: how many of the numbers make one unit of the scale.
      log: whether bars are as tall as the logarithm of their counts, and each spans twice as many
        numbers as the one before.
    """
    values = {int(number): count for number, count in histogram.items()}
    edges = _choose_edges(values, least, log)
    counts = np.zeros((len(edges) - 1, 2), int)  # all, and those that are dropped
    for number, count in values.items():
        place = min(np.searchsorted(edges, number, side="right") - 1, len(counts) - 1)
        counts[place] += count, count * dropped(number)
    bins = []
    for place, (total, gone) in enumerate(counts.tolist()):
        low, high = edges[place], edges[place + 1] - 1
        told = f"{low / unit:g}" if low == high else f"{low / unit:g} to {high / unit:g}"
        bins.append(Bin(f"{told}: {total:,}{f', {gone:,} dropped' * bool(gone)}", total, gone))
    step = -(-len(bins) // 6)
    ticks = {place + 0.5: f"{edges[place] / unit:g}" for place in range(0, len(bins), step)}
    return draw_histogram(title, bins, ticks, log=log)


def _choose_edges(values: Mapping[int, int], least: int, log: bool) -> list[int]:
    """Returns the whole numbers at which bars begin, and where the last one ends."""
    if not values:
        return [0, 1]
    if log:
        edges = [1]
        while edges[-1] <= max(values):
            edges.append(edges[-1] * 2)
        return edges
    counted, total, top = 0, sum(values.values()), 0
    for number in sorted(values):
        top, counted = number, counted + values[number]
        if counted >= 0.99 * total:  # the largest hundredth shares the last bar
            break
    top = max(top, min(least + least // 5, 2 * max(values)))  # a rule may be far from all data
    width = next(w for p in range(9) for w in (10**p, 2 * 10**p, 5 * 10**p) if BARS * w > top)
    return list(range(0, top + 2 * width, width))


def _list_samples(
    plan: JobPlan, statistics: dict[str, Any], samples: dict[str, list]
) -> Iterator[dict[str, Any]]:
    rows = sorted({(sample[0], sample[1]) for several in samples.values() for sample in several})
    pictures = {row: _read_picture(plan, *row) for row in rows}
    for name in ("kept", *statistics["rules"]):
        if samples.get(name):
            drops = statistics["rules"][name]["drops"] if name != "kept" else "no rule drops them"
            pairs = [
                {
                    "jpeg": pictures[file, row],
                    "text": text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}...",
                    "about": f"{width} × {height} · {plan.inputs.key(file, row)}",
                }
                for file, row, _, text, width, height in samples[name]
            ]
            yield {"name": name, "drops": drops, "pairs": pairs}


def _read_picture(plan: JobPlan, file: int, row: int) -> bytes:
    def read() -> Any:
        source = plan.inputs.open(file)
        return boundary.read_example(source, *FileRows(source).find(row)).image

    return read_thumbnail(read, THUMBNAIL, plan.examination.max_pixels)
