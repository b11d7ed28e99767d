"""The report of a job: what each rule dropped and why, in one page."""

import contextlib
import html
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image

from big_align.data import boundary, examples
from big_align.data.images.decoding import open_picture, to_rgb
from big_align.evaluators.exhibits.exhibit import encode_image
from big_align.plots.html_page import write_frame
from big_align.prepare import storage
from big_align.prepare.inputs import FileRows
from big_align.prepare.plan import JobPlan

STYLE = """
.flow { display: grid; gap: .3rem; margin: 1rem 0 0; } .flow div { display: grid;
  grid-template-columns: 7rem 1fr 12rem; gap: .8rem; align-items: center; }
.flow i { display: block; height: 1.1rem; background: var(--bar); border-radius: .2rem; }
.flow .gone i { background: var(--warn); } .flow b { font-weight: 500; } .flow span {
  font-variant-numeric: tabular-nums; font-size: .9rem; color: var(--soft); }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .7rem;
  margin: .6rem 0 1.5rem; } .pair { overflow: hidden; } .pair img { display: block; width: 100%;
  height: 8rem; object-fit: contain; background: var(--mark); } .pair p { margin: .5rem .6rem;
  font-size: .84rem; line-height: 1.35; overflow-wrap: anywhere; } .pair small { display: block;
  margin: 0 .6rem .6rem; color: var(--soft); overflow-wrap: anywhere; font-size: .72rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.rules td:first-child { width: 7rem; }
"""
THUMBNAIL = 160  # pixels of the longer side
TEXT_SHOWN = 160  # characters
BARS = 40


def write_report(plan: JobPlan, statistics: dict[str, Any]) -> None:
    """Writes the report of a job into its output."""
    samples = storage.read_json(storage.join(plan.decisions, "samples.json"))
    title = "Dry run: what the rules would take" if plan.sample else "Prepared pairs"
    body = [f"<h1>{title}</h1><p class=soft><code>{html.escape(plan.inputs.kind)} "
            f"{html.escape(_tell_paths(plan))}</code></p>"]  # fmt: skip
    if plan.sample:
        body.append(
            f"<p>A sample of {statistics['images']:,} examples. Rules that count over all data "
            "(<b>shared</b>, <b>crowded</b>, <b>rare</b>, <b>repeated</b>) see the sample alone: "
            "all data have more images of a text, more copies, and more common tokens.</p>"
        )
    body += [*_write_tiles(statistics), *_write_flow(statistics), *_write_rules(statistics)]
    body += [*_write_histograms(plan, statistics), *_write_kinds(statistics)]
    body += _write_samples(plan, statistics, samples)
    page = write_frame(title, STYLE, "".join(body))
    storage.write_text(plan.result("report.html"), page)


def _tell_paths(plan: JobPlan) -> str:
    paths = plan.inputs.paths
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}: {len(paths):,} files"


def _write_tiles(statistics: dict[str, Any]) -> Iterator[str]:
    pairs, kept = statistics["pairs"], statistics["kept_pairs"]
    texts = f"{'about ' * bool(statistics['sketches'])}{statistics['different_texts']:,}"
    quarantined = statistics["quarantined"]
    kept_in = "dry_run_quarantine.jsonl" if statistics["sampled"] else "quarantine.jsonl"
    tiles = [
        (f"{pairs:,}", "raw pairs that can be read", False),
        (f"{statistics['different_images']:,}", "different images among them", False),
        (texts, "different texts", False),
        (f"{kept:,}", f"pairs kept ({_percent(kept, pairs)})", kept == 0),
        (f"{statistics['kept_images']:,}", "images kept", False),
        (f"{statistics['bytes'] / 2**20:,.1f} MB", "of image files", False),
        (f"{quarantined:,}", f"cannot be used: {kept_in}", quarantined > 0),
    ]
    if not statistics["sampled"]:
        tiles.append((f"{statistics['shards']:,}", "shards", False))
    yield "<div class=tiles>"
    for number, what, warn in tiles:
        yield f"<div class='tile{' warn' * warn}'><b>{number}</b><span>{what}</span></div>"
    yield "</div>"


def _percent(count: int, total: int) -> str:
    share = 100 * count / max(total, 1)
    return f"{share:.2g}%" if 0 < share < 1 else f"{share:.1f}%"


def _write_flow(statistics: dict[str, Any]) -> Iterator[str]:
    """Shows what is left after each rule, in their order."""
    total = left = statistics["pairs"]
    yield "<h2>What is left</h2><p class=soft>A pair counts for the first rule that drops it.</p>"
    yield f"<div class=flow>{_write_bar('raw', left, total, f'{left:,}')}"
    for name, rule in statistics["rules"].items():
        left -= rule["first"]
        note = f"{left:,} left, {rule['first']:,} dropped"
        yield _write_bar(name, left, total, note)
    yield "</div>"


def _write_bar(name: str, count: int, total: int, note: str) -> str:
    width = 100 * count / max(total, 1)
    return f"<div><b>{name}</b><i style='width:{width:.2f}%'></i><span>{note}</span></div>"


def _write_rules(statistics: dict[str, Any]) -> Iterator[str]:
    pairs = statistics["pairs"]
    yield "<h2>Rules</h2><table class=rules><tr><th>rule<th>drops a pair if<th>would drop<th>of all"
    yield "<th>first to drop"
    for name, rule in statistics["rules"].items():
        yield (
            f"<tr><td>{name}<td>{html.escape(rule['drops'])}<td class=number>{rule['fails']:,}"
            f"<td class=number>{_percent(rule['fails'], pairs)}<td class=number>{rule['first']:,}"
        )
    yield "</table>"
    for reason, count in statistics["listed_by_reason"].items():
        yield f"<p>listed, {html.escape(reason)}: {count:,} pairs</p>"
    yield (
        f"<p class=soft>Tokens were {html.escape(statistics['tokens']['counted'])}. Image "
        f"classifier: {html.escape(statistics['classifier'])}.</p>"
    )
    if languages := statistics["languages"]:
        sampled = any("rate" in found for found in languages.values())
        yield "<h3>Languages</h3><table><tr><th>pairs<th>kept<th>of all<th>dropped"
        yield f"{'<th>of these by sampling<th>rate' * sampled}<th>language"
        for name, found in sorted(languages.items(), key=lambda each: -each[1]["pairs"]):
            numbers = [f"{found['pairs']:,}", f"{found['kept']:,}"]
            numbers += [_percent(found["kept"], found["pairs"]), f"{found['dropped']:,}"]
            if sampled:
                numbers += [f"{found['sampled_out']:,}", f"{found['rate']:.3g}"]
            cells = "".join(f"<td class=number>{number}" for number in numbers)
            yield f"<tr>{cells}<td>{html.escape(name)}"
        yield "</table>"


def _write_kinds(statistics: dict[str, Any]) -> Iterator[str]:
    kinds = statistics["quarantined_by_kind"]
    if kinds:
        yield "<h2>What cannot be used</h2><table><tr><th>count<th>reason"
        for kind, count in sorted(kinds.items(), key=lambda each: (-each[1], each[0])):
            yield f"<tr><td>{count:,}<td>{html.escape(kind)}"
        yield "</table>"


def _write_histograms(plan: JobPlan, statistics: dict[str, Any]) -> Iterator[str]:
    """Draws histograms; bars beyond a rule's number are those that it drops."""
    found, rules = statistics["histograms"], plan.rules
    unigrams = [n for n in (rules.min_unigrams, rules.max_unigrams) if n is not None]
    side, aspect = rules.min_side, rules.max_aspect
    below_side = (lambda n: n <= side) if side is not None else None
    over_aspect = (lambda n: n >= 10 * aspect) if aspect is not None else None
    yield "<h2>Before the rules</h2><div class=charts>"
    yield _draw("Shorter side of an image, pixels", found["shorter_side"], below_side, side or 0)
    yield _draw(
        "Longer side, in shorter ones", found["aspect_ratio_tenths"], over_aspect,
        int(10 * (aspect or 0)), 10,
    )  # fmt: skip
    yield _draw(
        "Unigrams of a text", found["unigrams_of_a_text"],
        (lambda n: n < (rules.min_unigrams or 0) or n > (rules.max_unigrams or 10**9))
        if unigrams else None, max(unigrams, default=0),
    )  # fmt: skip
    yield _draw(
        "Images of a text", found["images_of_a_text"],
        (lambda n: n > rules.max_images) if rules.max_images is not None else None, log=True,
    )  # fmt: skip
    yield _draw(
        "Texts of an image", found["texts_of_an_image"],
        (lambda n: n > rules.max_texts) if rules.max_texts is not None else None, log=True,
    )  # fmt: skip
    yield "</div>"


def _draw(
    title: str,
    histogram: Mapping[Any, int],
    dropped: Any,
    least: int = 0,
    unit: int = 1,
    log: bool = False,
) -> str:
    """Draws a histogram as SVG.

    Args:
      title: above it.
      histogram: how often each whole number occurs.
      dropped: returns whether a rule drops a number; None for no rule.
      least: a number that is always shown, however few are above it.
      unit: how many of the numbers make one unit of the scale.
      log: whether bars are as tall as the logarithm of their counts, and each spans twice as many
        numbers as the one before.
    """
    values = {int(number): count for number, count in histogram.items()}
    edges = _choose_edges(values, least, log)
    bars: dict[tuple[int, bool], int] = {}
    for number, count in values.items():
        at = int(np.searchsorted(edges, number, side="right")) - 1
        over = bool(dropped and dropped(number))
        place = (min(at, len(edges) - 2), over)
        bars[place] = bars.get(place, 0) + count
    size = (lambda n: np.log1p(n)) if log else float
    sums = [sum(bars.get((n, over), 0) for over in (False, True)) for n in range(len(edges) - 1)]
    tallest, wide = max(map(size, sums), default=0) or 1, 460 / max(len(edges) - 1, 1)
    drawn = []
    for at, total in enumerate(sums):
        low, high = edges[at], edges[at + 1] - 1
        tall, gone = 110 * size(total) / tallest, bars.get((at, True), 0)
        told = f"{low / unit:g}" if low == high else f"{low / unit:g} to {high / unit:g}"
        split = tall * gone / total if total else 0
        for kind, top, part in (("bar", tall, tall - split), ("over", split, split)):
            if part > 0:
                drawn.append(
                    f"<rect class={kind} x='{20 + at * wide:.1f}' y='{130 - top:.1f}' rx=1 width='"
                    f"{max(wide - 1.2, 0.6):.1f}' height='{max(part, 0.8):.1f}'><title>{told}: "
                    f"{total:,}{f', {gone:,} dropped' if gone else ''}</title></rect>"
                )
    step = max(1, (len(edges) - 1) // 6)
    ticks = "".join(
        f"<text x='{20 + (at + 0.5) * wide:.1f}' y=147 text-anchor=middle>{edges[at] / unit:g}"
        "</text>" for at in range(0, len(edges) - 1, step)
    )  # fmt: skip
    return (
        f"<figure class='card chart'><figcaption>{html.escape(title)}"
        f"{' (bars are logarithms)' if log else ''}</figcaption><svg viewBox='0 0 500 155' role=img"
        f" aria-label='{html.escape(title)}'>{''.join(drawn)}"
        f"<line x1=20 x2=480 y1=130.5 y2=130.5 />{ticks}</svg></figure>"
    )


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


def _write_samples(
    plan: JobPlan, statistics: dict[str, Any], samples: dict[str, list]
) -> Iterator[str]:
    rows = sorted({(sample[0], sample[1]) for several in samples.values() for sample in several})
    pictures = {row: _read_thumbnail(plan, *row) for row in rows}
    yield "<h2>Examples</h2><p class=soft>Drawn at random. A pair is listed under every rule that "
    yield "would drop it.</p>"
    for name in ("kept", *statistics["rules"]):
        if not samples.get(name):
            continue
        told = statistics["rules"][name]["drops"] if name != "kept" else "no rule drops them"
        yield f"<h3>{name} <span class=soft>· {html.escape(told)}</span></h3><div class=pairs>"
        for file, row, _, text, width, height in samples[name]:
            short = text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}..."
            yield (
                f"<figure class='card pair'><img alt='' src='{pictures[file, row]}'>"
                f"<p>{html.escape(short)}</p><small>{width} × {height} · "
                f"{html.escape(plan.inputs.key(file, row))}</small></figure>"
            )
        yield "</div>"


def _read_thumbnail(plan: JobPlan, file: int, row: int) -> str:
    """Returns a small picture as a data URL, which is empty if the picture is gone."""
    with contextlib.suppress(examples.BrokenExample, OSError, ValueError):
        source = plan.inputs.open(file)
        at = FileRows(source).find(row)
        image = boundary.read_example(source, *at).image
        if isinstance(image, bytes):
            picture = to_rgb(open_picture(image, plan.examination.max_pixels))
        else:
            picture = Image.fromarray(np.ascontiguousarray(image, np.uint8))
        picture.thumbnail((THUMBNAIL, THUMBNAIL))
        return encode_image(np.asarray(picture))
    return "data:,"
