"""What a search has found: as lines, as JSON, and as a page that needs no other file."""

import argparse
import dataclasses
import html
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from big_align.core.errors import put_in_a_line
from big_align.data.images.given_images import read_image
from big_align.plots.html_page import HEAD
from big_align.use.search import queries
from big_align.use.search.search_index import Hit, SearchIndex
from big_align.use.search.thumbnails import make_thumbnail, write_address

STYLE = (pathlib.Path(__file__).parent / "style.css").read_text("utf-8")
TEXT_MAX = 80  # characters of a caption in a line, and of metadata on a page
CAPTIONS_SHOWN = 2  # of an image on a page
THUMBNAIL = 256  # pixels, of the images of a query


def write_lines(hits: Sequence[Hit]) -> str:
    """Writes one line per hit: rank, cosine, name and first caption, separated by tabs."""
    lines = []
    for place, hit in enumerate(hits, start=1):
        caption = put_in_a_line(hit.captions[0]) if hit.captions else ""
        cells = [str(place), f"{hit.score:.3f}", put_in_a_line(hit.name), _cut(caption)]
        lines.append("\t".join(cells).rstrip())
    return "\n".join(lines) if lines else "nothing meets the conditions"


def _cut(text: str) -> str:
    return f"{text[:TEXT_MAX]}..." if len(text) > TEXT_MAX else text


def describe_query(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Lists the parts of a query with their weights.

    Args:
      options: those of `big_align.tools.search`: texts, image, like, and weights.
    """
    images = [("image", path) for path in options.image] + [("like", n) for n in options.like]
    given = options.weights and [float(number) for number in options.weights.split(",")]
    weights = queries.choose_weights(len(options.texts), len(images), given)
    parts = []
    for text, weight in zip(options.texts, weights, strict=False):
        words, sign = queries.split_sign(text)
        parts.append({"text": words, "weight": sign * weight})
    for (kind, name), weight in zip(images, weights[len(options.texts) :], strict=True):
        parts.append({kind: name, "weight": weight})
    return parts


def write_json(options: argparse.Namespace, hits: Sequence[Hit]) -> str:
    """Writes the query and the hits; dates are ISO 8601."""
    found = {
        "query": describe_query(options),
        "of": options.of,
        "filters": options.filter,
        "hits": [dataclasses.asdict(hit) for hit in hits],
    }
    return json.dumps(found, indent=1, ensure_ascii=False, default=str) + "\n"


def write_page(index: SearchIndex, options: argparse.Namespace, hits: Sequence[Hit]) -> str:
    """Writes HTML that includes the pictures."""
    parts = "".join(_write_part(index, part) for part in describe_query(options))
    conditions = " · ".join([options.of, *options.filter, f"{len(hits)} of {len(index)} images"])
    tiles = "".join(_write_tile(index, hit) for hit in hits)
    return (
        f"{HEAD}<title>Search results</title><style>{STYLE}</style>"
        f"<body><h1>Search results</h1><div class=parts>{parts}</div><p class=soft>"
        f"{html.escape(conditions)}</p><div class=grid>{tiles}</div></body></html>\n"
    )


def _write_part(index: SearchIndex, part: dict[str, Any]) -> str:
    weight = f"<b>{part['weight']:+g}</b>"
    if "text" in part:
        return f"<span class=part>{weight} {html.escape(part['text'])}</span>"
    if "like" in part:
        jpeg = index.contents.read_thumbnail(index.find_row(part["like"]))
    else:
        jpeg = make_thumbnail(read_image(part["image"]), THUMBNAIL)
    name = html.escape(str(part.get("like", part.get("image"))))
    return f"<span class=part>{weight} <img alt='' src='{write_address(jpeg)}'> {name}</span>"


def _write_tile(index: SearchIndex, hit: Hit) -> str:
    jpeg = index.contents.read_thumbnail(hit.row)
    picture = f"<img alt='' src='{write_address(jpeg)}'>" if jpeg else "<div class=none></div>"
    texts = "".join(
        f"<div class=text>{html.escape(text)}</div>" for text in hit.captions[:CAPTIONS_SHOWN]
    )
    there = {name: str(value) for name, value in hit.metadata.items() if value is not None}
    facts = [f"{name} {_cut(value)}" for name, value in there.items()]
    small = html.escape(" · ".join([hit.name, *facts]))
    return (
        f"<figure>{picture}<figcaption><div class=score>{hit.score:.3f}</div>{texts}"
        f"<small>{small}</small></figcaption></figure>"
    )
