"""What can be read on a page: contrasts in light and dark, and labels on a phone."""

import functools
import itertools
import pathlib
import re

import numpy as np
import pytest

from big_align.evaluators.exhibits.exhibit import Distributions, encode
from big_align.pages import rendering
from big_align.pages.charts import draw_chart
from big_align.pages.histograms import Bin, draw_histogram
from big_align.pages.plots.shades import shade_confusion
from big_align.pages.run_report.pictures import draw_ridges

STYLE = (pathlib.Path(rendering.__file__).parent / "templates/style.css").read_text()
PHONE, READABLE = 390, 9
"""Width of a phone, and the least size of a label, in pixels."""


@functools.cache
def colors_of(theme):
    light, dark = re.findall(r":root \{([^}]*)\}", STYLE)
    given = light + (dark if theme == "dark" else "")
    return {name: parse(color) for name, color in re.findall(r"--([\w-]+): (#[0-9a-f]+);", given)}


def parse(color):
    digits = color[1:] if len(color) > 5 else "".join(2 * x for x in color[1:])
    return np.array([int(digits[n : n + 2], 16) for n in (0, 2, 4)]) / 255


def contrast(one, other):
    """The ratio of WCAG 2.1."""
    linear = [np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) for x in (one, other)]
    low, high = sorted(float(x @ [0.2126, 0.7152, 0.0722]) for x in linear)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_what_they_are_written_on(theme):
    colors = colors_of(theme)
    pairs = [*itertools.product(("ink", "soft", "right", "warn"), ("paper", "card"))]
    pairs += [("ink", "chip"), ("on-accent", "accent")]
    faint = [pair for pair in pairs if contrast(*(colors[name] for name in pair)) < 4.5]
    assert not faint


COUNTS = [
    [[42, 0, 0], [0, 99, 0]],
    [[997, 1, 2], [0, 3, 0]],
    [[0, 5, 900], [800, 1, 1]],
    [[0, 0, 0], [0, 0, 0]],
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_error_is_seen_and_its_number_can_be_read(theme):
    colors = colors_of(theme)
    for counts in COUNTS:
        table = rendering._make_environment().from_string(
            '{% import "parts.html" as draw %}{{ draw.confusion(["a", "b"], counts) }}'
        )
        cell = r'<td class="(hit|miss)" style="--strength: ([\d.]+)">(\d+)'
        cells = re.findall(cell, table.render(counts=counts))
        assert sum(int(count) for *_, count in cells) == np.sum(counts)
        for kind, strength, _ in cells:
            background = colors["paper"] + float(strength) * (colors[kind] - colors["paper"])
            assert contrast(colors["ink"], background) >= 4.5
            if kind == "miss":
                assert contrast(background, colors["paper"]) >= 1.4


def test_errors_have_a_scale_of_their_own():
    shades = shade_confusion(np.array(COUNTS[1]))
    np.testing.assert_allclose(shades, [[0.997, 0.75, 1], [0, 1, 0]])
    assert shade_confusion(np.array(COUNTS[0])).tolist() == [[1, 0, 0], [0, 1, 0]]


def rem(text):
    return 16 * float(re.fullmatch(r"([\d.]+)rem", text)[1])


def test_labels_of_every_drawing_can_be_read_on_a_phone():
    """A drawing is as wide as its card, and with it its labels grow and shrink."""
    body = re.search(r"@media \(max-width: 40rem\) \{ body \{ padding: \S+ (\S+) ", STYLE)[1]
    card = re.search(r"\.chart \{ padding: \S+ (\S+); \}", STYLE)[1]
    size = float(re.search(r"svg text \{.*font: (\d+)px", STYLE)[1])
    wide = PHONE - 2 * rem(body) - 2 * rem(card) - 2
    shown = Distributions("", "", ["a"], [-1.0, 0.0, 1.0], np.ones((1, 1, 2)), [1_000_000])
    drawings = {
        "curve": draw_chart("", {"a": [(1, 0.5), (10**6, 123456.0)]}),
        "histogram": draw_histogram(
            "", [Bin("", 3)] * 30, {0.0: "0", 30.0: "1,000"}, (20.0, "cut at 9")
        ),
        "ridges": draw_ridges(encode(shown)),
    }
    for name, drawing in drawings.items():
        assert size * wide / drawing.width >= READABLE, name
        texts = [shape for shape in drawing.shapes if shape.tag == "text"]
        for shape in texts:  # 0.6 of their size is the width of a digit
            long = 0.6 * size * len(shape.text)
            part = {"start": 0, "middle": 0.5, "end": 1}[shape.fields["text-anchor"]]
            left = shape.fields["x"] - part * long
            assert left >= -4 and left + long <= drawing.width + 4, (name, shape.text)
