"""What a search has found: as lines, as JSON, and as a page that needs no other file."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from big_align.core.errors import put_in_a_line
from big_align.data.images.given_images import read_image
from big_align.pages.rendering import render
from big_align.pages.thumbnails import make_thumbnail
from big_align.use.search import queries
from big_align.use.search.search_index import Hit, SearchIndex

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
    """Lists the parts of a query of `big_align.tools.search` with their weights."""
    images = [("image", path) for path in options.image] + [("like", n) for n in options.like]
    weights = queries.choose_weights(len(options.texts), len(images), options.weights)
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
    return render(
        "found.html",
        title="Search results",
        parts=[_list_part(index, part) for part in describe_query(options)],
        conditions=[options.of, *options.filter, f"{len(hits)} of {len(index)} images"],
        hits=[
            {
                "jpeg": index.read_thumbnail(hit.row),
                "score": hit.score,
                "captions": hit.captions[:CAPTIONS_SHOWN],
                "facts": [
                    f"{name} {_cut(str(value))}"
                    for name, value in hit.metadata.items()
                    if value is not None
                ],
                "name": hit.name,
            }
            for hit in hits
        ],
    )


def _list_part(index: SearchIndex, part: dict[str, Any]) -> dict[str, Any]:
    """Returns the weight, the name, and the picture of a part of a query, if it has one."""
    jpeg = None
    if "like" in part:
        jpeg = index.read_thumbnail(index.find_row(part["like"]))
    elif "image" in part:
        jpeg = make_thumbnail(read_image(part["image"]), THUMBNAIL)
    (name,) = part.keys() - {"weight"}
    return {"weight": part["weight"], "name": part[name], "jpeg": jpeg}
