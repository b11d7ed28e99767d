"""A page about data, in a single file: counts, faults, sizes, texts, duplicates, and pictures."""

import html
import math
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from big_align.data.loading.inspection import Duplicates, Picture, Report
from big_align.evaluators.exhibits.exhibit import encode_image
from big_align.plots.html_page import write_frame

STYLE = """
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr));
  gap: 1rem; } .picture { overflow: hidden; } .picture img { display: block; width: 100%;
  aspect-ratio: var(--shape); image-rendering: auto; background: var(--mark); }
.picture div { padding: .7rem .8rem .8rem; } .picture p { margin: .45rem 0; line-height: 1.75; }
.picture small { color: var(--soft); overflow-wrap: anywhere; display: block; }
.t { background: var(--chip); border-radius: .25rem; padding: .05rem .28rem; margin-right: .18rem;
  font-size: .86rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.t.special { background: none; color: var(--soft); padding: 0; font-size: .75rem; }
.t.cut { background: none; color: var(--soft); text-decoration: line-through; }
"""
SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<|startoftext|>", "<|endoftext|>"}
BINS = 30


def write_page(title: str, command: str, parts: Sequence[tuple[str, str, Report]]) -> str:
    """Writes a page about the parts of some data.

    Args:
      title: title of the page.
      command: the flags that name the data.
      parts: the name, the description and the report of each part.

    Returns:
      HTML that needs no other files.
    """
    body = [f"<h1>{html.escape(title)}</h1><p class=soft><code>{html.escape(command)}</code></p>"]
    for name, description, report in parts:
        body += [f"<h2>{html.escape(name)}</h2><p class=soft>{html.escape(description)}</p>"]
        body += _write_part(report)
    return write_frame(title, STYLE, "".join(body))


def summarize(report: Report) -> list[tuple[str, str, bool]]:
    """Returns the important numbers: each with its description, and whether it is a fault."""
    broken = sum(fault.count for fault in report.faults)
    looked = "all" if report.read == report.examples else f"a sample of {report.read:,}"
    shards = f"{report.shards:,} shard{'s' * (report.shards != 1)}"
    rows = [(f"{report.examples:,}", f"examples in {shards}; read: {looked}", False)]
    if report.lost:
        rows.append((f"{report.lost:,}", "incomplete examples, which are left out", True))
    rows.append((f"{broken:,}", f"broken ({_percent(broken, report.read)})", broken > 0))
    if len(report.sizes):
        width, height = np.median(report.sizes, axis=0)
        rows.append((f"{width:.0f} × {height:.0f}", "median width and height in pixels", False))
    if report.captions.sum():
        rows.append((f"{report.captions.mean():.3g}", "captions an image on average", False))
    if len(report.tokens):
        rows.append((f"{np.median(report.tokens):.0f}", "tokens a text (median)", False))
        share = _percent(report.cut, len(report.tokens))
        rows.append((share, f"of texts longer than {report.length} tokens: cut", report.cut > 0))
        share = _percent(report.unknown, int(report.tokens.sum()))
        rows.append((share, "of tokens unknown to the tokenizer", report.unknown > 0))
    for what, found in (("image", report.images_twice), ("caption", report.captions_twice)):
        if found.total:
            repeated = f"{what}s that repeat another ({_percent(found.count, found.total)})"
            rows.append((f"{found.count:,}", repeated, found.count > 0))
    if report.labels:
        rows.append((f"{len(report.labels):,}", "different labels", False))
    return rows


def _percent(count: int, total: int) -> str:
    share = 100 * count / max(total, 1)
    return f"{share:.2g}%" if 0 < share < 10 else f"{share:.0f}%"


def _write_part(report: Report) -> Iterable[str]:
    """Yields the HTML fragments of one part."""
    yield "<div class=tiles>"
    for number, what, warn in summarize(report):
        yield f"<div class='tile{' warn' * warn}'><b>{number}</b><span>{what}</span></div>"
    yield "</div><div class=charts>"
    if len(report.tokens):
        yield _draw_histogram("Tokens of a text", report.tokens, report.length, "cut above")
    if len(report.sizes):
        seen = report.pictures[0].pixels.shape[:2] if report.pictures else (0, 0)
        short = report.sizes.min(axis=1)
        yield _draw_histogram("Shorter side of an image, pixels", short, min(seen), "model sees")
    yield "</div>"
    if report.faults:
        yield "<h3>Broken examples by kind</h3><table><tr><th>count<th>reason<th>first of them"
        for fault in report.faults:
            cells = map(html.escape, (f"{fault.count:,}", fault.reason, fault.name))
            yield f"<tr><td>{'<td>'.join(cells)}"
        yield "</table>"
    yield from _write_duplicates("Images with the same bytes", report.images_twice)
    yield from _write_duplicates("Captions that several examples share", report.captions_twice)
    yield "<h3>As the model sees them</h3><p class=soft>Each picture after one draw of the "
    yield "transform, with its texts as tokens; what is struck through is cut off.</p><br>"
    yield "<div class=pictures>"
    for picture in report.pictures:
        yield _write_picture(picture, report.length)
    yield "</div>"


def _write_duplicates(title: str, found: Duplicates) -> Iterable[str]:
    if found.groups:
        yield f"<h3>{title}</h3><table><tr><th>times<th>which"
        for count, text, names in found.groups:
            more = ["..."] if count > len(names) else []
            text = f"{html.escape(text)}<br>" if text else ""
            listed = html.escape(", ".join([*names, *more]))
            yield f"<tr><td>{count:,}<td>{text}<span class=soft>{listed}</span>"
        yield "</table>"


def _write_picture(picture: Picture, length: int) -> str:
    height, width = picture.pixels.shape[:2]
    texts = "".join(f"<p>{_write_tokens(tokens, length)}</p>" for tokens in picture.texts)
    labels = f"label {', '.join(map(str, picture.labels))} · " if picture.labels else ""
    size = f"{picture.size[0]} × {picture.size[1]} pixels"
    return (
        f"<figure class='card picture' style='--shape: {width} / {height}'>"
        f"<img alt='' src='{encode_image(picture.pixels)}'><div>{texts}"
        f"<small>{labels}{size} · {html.escape(picture.name)}</small></div></figure>"
    )


def _write_tokens(tokens: Sequence[str], length: int) -> str:
    """Writes tokens; in texts that are cut off, the end mark is not the text's own."""
    spans = []
    kept = len(tokens) if len(tokens) <= length else length - (tokens[-1] in SPECIAL)
    for place, token in enumerate(tokens):
        kind = " special" if token in SPECIAL else " cut" if place >= kept else ""
        shown = html.escape(token.removesuffix("</w>"))
        spans.append(f"<span class='t{kind}'>{shown}</span>")
    return "<wbr>".join(spans)


def _draw_histogram(title: str, values: Int[np.ndarray, " n"], mark: int, note: str) -> str:
    """Draws a histogram of values as SVG, with a mark that some may exceed.

    Args:
      title: title above it.
      values: the values to count; the largest hundredth shares the last bar.
      mark: a value to compare with; 0 for none.
      note: note next to the mark.
    """
    top = max(float(np.percentile(values, 99)), mark * 1.1, 1)
    width = max(1, math.ceil(top / BINS))
    edges = np.arange(0, math.ceil(top / width) * width + width, width)
    counts, _ = np.histogram(np.minimum(values, edges[-1] - 0.5), edges)
    x = lambda value: 20 + 460 * value / edges[-1]  # noqa: E731
    bars = []
    for low, count in zip(edges[:-1].tolist(), counts.tolist(), strict=True):
        size = 110 * count / max(counts.max(), 1)
        kind = "over" if note.startswith("cut") and mark and low > mark else "bar"
        tall = max(size, 1.0 if count else 0)
        bars.append(
            f"<rect class={kind} x='{x(low):.1f}' y='{130 - tall:.1f}' rx=1.5 "
            f"width='{max(460 * width / edges[-1] - 1.5, 0.8):.1f}' height='{tall:.1f}'><title>"
            f"{low} to {low + width - 1}: {count:,}</title></rect>"
        )
    step = next(n for p in range(9) for n in (10**p, 2 * 10**p, 5 * 10**p) if 6 * n >= edges[-1])
    ticks = "".join(
        f"<text x='{x(value):.1f}' y=147 text-anchor=middle>{value:,}</text>"
        for value in range(0, int(edges[-1]) + 1, step)
    )
    line = ""
    if mark:
        place = x(mark + (1 if note.startswith("cut") else 0))  # the last that is not cut has a bar
        side = "end" if mark > 0.6 * edges[-1] else "start"
        shift = -4 if side == "end" else 4
        line = (
            f"<line class=mark x1='{place:.1f}' x2='{place:.1f}' y1=8 y2=130 /><text class=note"
            f" x='{place + shift:.1f}' y=16 text-anchor={side}>{note} {mark}</text>"
        )
    return (
        f"<figure class='card chart'><figcaption>{html.escape(title)}</figcaption>"
        f"<svg viewBox='0 0 500 155' role=img aria-label='{html.escape(title)}'>{''.join(bars)}"
        f"<line x1=20 x2=480 y1=130.5 y2=130.5 />{ticks}{line}</svg></figure>"
    )
