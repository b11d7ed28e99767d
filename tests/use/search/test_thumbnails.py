"""Thumbnails are small pictures of the pixels, and of nothing else that a file holds."""

import io

import numpy as np
import pytest
from PIL import Image

from big_align.data.examples import BrokenExample
from big_align.use.search.thumbnails import make_thumbnail


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decode(data):
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("size, expected", [((400, 200), (64, 32)), ((30, 40), (30, 40))])
def test_the_longer_side_is_bounded_and_nothing_is_enlarged(size, expected):
    for image in (encode(Image.new("RGB", size, "red")), np.zeros((*size[::-1], 3), np.uint8)):
        thumbnail = decode(make_thumbnail(image, 64))
        assert thumbnail.format == "JPEG" and thumbnail.size == expected


def test_where_a_photograph_was_taken_is_left_out():
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret place"
    image = encode(Image.new("RGB", (80, 40), "red"), exif=exif, comment=b"secret comment")
    assert b"secret" in image
    thumbnail = make_thumbnail(image, 64)
    assert b"secret" not in thumbnail and not decode(thumbnail).getexif()
    assert decode(thumbnail).size == (32, 64)  # upright


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "LA", "1"])
def test_every_mode_becomes_colors(mode):
    image = Image.new("L", (20, 10), 255).convert(mode)
    pixels = np.asarray(decode(make_thumbnail(encode(image, "PNG"), 64)).convert("RGB"))
    bright = 0 if mode == "I;16" else 255  # 255 of 65535
    np.testing.assert_allclose(pixels, np.full((10, 20, 3), bright), atol=2)


def test_what_cannot_be_decoded_or_is_too_large_is_broken():
    with pytest.raises(BrokenExample, match="cannot be opened"):
        make_thumbnail(b"no image", 64)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3)).astype(np.uint8))
    with pytest.raises(BrokenExample, match="truncated"):
        make_thumbnail(encode(noise)[:900], 64)
    with pytest.raises(BrokenExample, match="100 x 100 pixels, which is more than max_pixels=9999"):
        make_thumbnail(encode(Image.new("1", (100, 100)), "PNG"), 64, max_pixels=9999)
