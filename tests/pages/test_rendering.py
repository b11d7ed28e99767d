"""Whatever is put into a page is text, and a page that lacks a value is an error."""

import html.parser
import pathlib
import re
import types

import jinja2
import numpy as np
import pytest

from big_align.pages import rendering
from big_align.pages.charts import draw_chart
from big_align.pages.histograms import Bin, draw_histogram
from big_align.pages.rendering import Tile, render

EVIL = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>{{ 7 * 7 }}{% raise %}&lt;"
Given = types.SimpleNamespace
TILES = [Tile(EVIL, EVIL, True), Tile("1", "what")]
TABLE = {"head": [EVIL] * 5, "rows": [[EVIL] * 5], "best": {(0, 1)}}
CHART = draw_chart(EVIL, {EVIL: [(1, 0.5), (2, 0.7)], f"{EVIL}2": [(1, 0.5)]})
BARS = draw_histogram(EVIL, [Bin(EVIL, 3, 1), Bin(EVIL, 0)], {0.5: EVIL}, (1.5, EVIL))
ITEM = {"text": EVIL, "image": "data:,", "right": True}
LINES = {"query": ITEM, "found": [ITEM | {"image": None}]}
CONFUSION = {"title": EVIL, "note": EVIL, "names": [EVIL] * 2, "counts": [[1, 2, 3]] * 2}
EXHIBITS = [
    {"kind": "rows", "rows": [{"query": ITEM, "found": [ITEM]}]},
    {"kind": "rows", "rows": [LINES, LINES | {"found": []}]},
    {"kind": "shares", "drawing": CHART},
    {"kind": "counts"},
    {"kind": "nothing"},
]
PICTURE = Given(pixels=np.zeros((2, 2, 3), np.uint8), labels=[3], size=(2, 2), name=EVIL)
TWICE = Given(groups=[(9, EVIL, [EVIL])])
HIT = {"jpeg": b"x", "score": 0.5, "captions": [EVIL], "facts": [EVIL], "name": EVIL}
VALUES = {
    "run.html": {
        "record": Given(config={"a": EVIL}), "config": EVIL, "changes": [[EVIL] * 3],
        "tiles": TILES, "stages": {"head": [EVIL] * 8, "rows": [[EVIL] * 8]},
        "evaluations": TABLE, "charts": [CHART], "trains": [EVIL],
        "exhibits": [CONFUSION | each for each in EXHIBITS], "data": [[EVIL] * 3],
        "parameters": [[EVIL] * 2], "machine": [[EVIL] * 2], "processes": [[EVIL] * 3] * 2,
        "every_field": EVIL, "time": [(EVIL, 3.0, 1.0)], "commands": {EVIL: EVIL},
    },
    "comparison.html": {
        "names": [EVIL] * 4, "runs": [[EVIL] * 6], "evaluations": TABLE, "charts": [CHART],
        "changes": [[EVIL] * 5],
    },
    "data.html": {
        "command": EVIL,
        "parts": [{
            "name": EVIL, "description": EVIL, "tiles": TILES, "histograms": [BARS],
            "faults": [[EVIL] * 3], "report": Given(images_twice=TWICE, captions_twice=TWICE),
            "pictures": [(PICTURE, [[("cut", EVIL), ("", EVIL)]])],
        }],
    },
    "prepared.html": {
        "told": EVIL, "tiles": TILES, "flow": [(EVIL, 5.0, EVIL)], "rules": [[EVIL] * 5],
        "faults": [[EVIL] * 2], "histograms": [BARS], "languages": TABLE,
        "found": {
            "sampled": True, "images": 3, "listed_by_reason": {EVIL: 3}, "classifier": EVIL,
            "tokens": {"counted": EVIL},
        },
        "samples": [
            {"name": EVIL, "drops": EVIL, "pairs": [{"jpeg": b"", "text": EVIL, "about": EVIL}]}
        ],
    },
    "twins.html": {
        "told": EVIL, "threshold": 0.9, "tiles": TILES, "dropped": EVIL, "histograms": [BARS],
        "misses": [], "shown": [{"cosine": 0.9, "pictures": [b"x", b""], "names": [EVIL] * 2}],
    },
    "benchmarks.html": {
        "models": EVIL, "tiles": TILES, "overview": [[EVIL] * 6], "papers": {EVIL: EVIL},
        "sections": [{
            "title": EVIL, "note": EVIL, "groups": [(EVIL, [(120.0, EVIL, EVIL, True)])],
            "confusions": [CONFUSION],
            "classes": {"which": EVIL, "head": [EVIL] * 3, "rows": [[EVIL] * 3]},
        }],
    },
    "found.html": {
        "conditions": [EVIL], "hits": [HIT, HIT | {"jpeg": b""}],
        "parts": [{"weight": 1, "name": EVIL, "jpeg": jpeg} for jpeg in (None, b"x")],
    },
    "search.html": {"nonce": "abc", "about": {"columns": [EVIL], "images": 1}},
}  # fmt: skip


class Elements(html.parser.HTMLParser):
    """The elements of a page, their attributes, and the texts; whatever is opened is closed."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.fields, self.open, self.texts, self.joined = [], [], [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.joined = tag == "wbr"
        self.fields += attrs
        if tag not in ("meta", "link", "img", "br", "wbr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.joined:  # a word that may be broken is one
            self.texts[-1] += data
        else:
            self.texts.append(data)
        self.joined = False


def test_every_template_is_here():
    names = {
        path.name for path in (pathlib.Path(rendering.__file__).parent / "templates").iterdir()
    }
    assert names - VALUES.keys() == {"base.html", "parts.html", "style.css", "icon.svg"}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_text_and_never_markup(name):
    page = Elements(render(name, title=EVIL, **VALUES[name]))
    fields = [field for field, _ in page.fields]
    assert page.open == [] and not any(field.startswith("on") for field in fields)
    assert page.tags.count("script") == (name == "search.html")
    assert all(value.startswith("data:") for field, value in page.fields if field == "src")
    styles = [value for field, value in page.fields if field == "style"]
    assert not any("<" in style or "{" in style for style in styles)
    assert sum(EVIL in text for text in page.texts) >= 2  # as it was given
    if name == "search.html":
        assert not styles  # its policy allows none
    else:  # a browser fetches and runs nothing
        policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        assert ("content", policy) in page.fields


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_missing_is_an_error(name):
    for missing in VALUES[name]:
        given = {key: value for key, value in VALUES[name].items() if key != missing}
        with pytest.raises((jinja2.UndefinedError, TypeError)):  # of JSON
            render(name, title="", **given)


def test_bars_are_as_tall_as_their_counts_and_show_what_is_over():
    def draw(*bins, **options):
        shapes = draw_histogram("", bins, {}, **options).shapes
        return [shape for shape in shapes if shape.tag == "rect"]

    bars = draw(Bin("a", 4), Bin("b", 8, 2))
    shown = [(bar.fields["class"], bar.fields["height"], bar.text) for bar in bars]
    assert shown == [("bar", 55.0, "a"), ("bar", 82.5, "b"), ("over", 27.5, "b")]
    a, b, over = (bar.fields for bar in bars)
    assert a["x"] < b["x"] == over["x"] and b["y"] + b["height"] == over["y"]
    assert over["y"] + over["height"] == a["y"] + a["height"]
    tall, low = (bar.fields["height"] for bar in draw(Bin("", 99), Bin("", 9), log=True))
    assert tall == 2 * low
    assert draw() == []


def test_long_words_are_broken_at_joints_and_stay_what_they_are():
    long = "digits/mean_per_class and name=digits, /a/folder/of/photographs-*.tar 12,345,678,901.5"
    shown = rendering.mark_joints(long)
    assert shown.replace("<wbr>", "") == long and "digits/<wbr>mean_<wbr>per_<wbr>class" in shown
    assert " name=digits, " in shown and " 12,345,678,901.5" in shown.replace(",<wbr>", ",")
    assert rendering.mark_joints("<b>/" * 9).count("&lt;b&gt;/") == 9


@pytest.mark.parametrize("count", range(2, 25))
def test_no_line_of_tiles_has_one_alone(count):
    page = rendering.render(
        "twins.html", title="", **VALUES["twins.html"] | {"tiles": TILES[:1] * count}
    )
    most = int(re.search(r"--most: (\d+)", page)[1])
    assert most <= 6 and (count % most != 1 or most == 1)


def test_percentages_are_short():
    shown = [rendering.format_percent(*x) for x in ((1, 2), (0, 0), (1, 300), (1, 3), (0.5,))]
    assert shown == ["50%", "0%", "0.33%", "33.3%", "50%"]
