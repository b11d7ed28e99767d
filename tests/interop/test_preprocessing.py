"""Image operations are kept as they are, and told to other libraries if these have them."""

import random

import numpy as np
import pytest
from PIL import Image

from big_align import interop
from big_align.data.examples import BrokenExample
from big_align.data.images.image_ops import Transform
from big_align.errors import ConfigError, UserError
from big_align.interop.formats.preprocessing import Preprocessing
from tests.interop.test_native_format import make_pretrained

COLORS = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
SHARED = (
    "resize(20)",
    "resize(16, method='bilinear')",
    "resize(height=20)|central_crop(height=16)",
    "resize(20, 20)|central_crop(16, 16, half_to_even=True)",
    "resize_small(21, 'lanczos')|central_crop(16)",
)
OURS = (
    "resize(20, 24)",
    "resize(20)|central_crop(16, 12)",
    "resize_small(16)",
    "resize_small(20)|central_crop(16)|grayscale(1.0)",
    "resize(24)|resize(20)|central_crop(16)",
)


@pytest.mark.parametrize("transform", SHARED + OURS)
def test_it_makes_the_pixels_of_the_operations(transform):
    image = np.random.default_rng(0).integers(0, 256, (41, 30, 3)).astype(np.uint8)
    seen = Preprocessing.from_transform(transform, *COLORS)
    expected = Transform(transform)(image, random.Random(0))
    np.testing.assert_array_equal(seen(image), expected)
    assert (seen.mean, seen.std) == COLORS
    assert (seen.operations is None) == (transform in SHARED)


@pytest.mark.parametrize("format", ["transformers", "timm"])
def test_operations_of_ours_stay_in_our_format(tmp_path, format):
    seen = Preprocessing.from_transform(OURS[0], *COLORS)
    model = make_pretrained("resnet", preprocessing=seen)
    with pytest.raises(UserError, match=rf"format = '{format}' cannot hold .*'resize\(20, 24\)'"):
        interop.save(tmp_path / "theirs", model, format=format)
    assert not (tmp_path / "theirs").exists()
    interop.save(tmp_path / "ours", model, format="big_align")
    assert interop.read(tmp_path / "ours").preprocessing == seen


def test_an_image_may_have_any_form(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3)).astype(np.uint8)
    path, seen = tmp_path / "a.png", Preprocessing(8, 16)
    Image.fromarray(pixels).save(path)
    for image in (path, str(path), path.read_bytes(), Image.open(path)):
        np.testing.assert_array_equal(seen(image), seen(pixels))
    with pytest.raises(BrokenExample, match="gone.png: there is no such file"):
        seen(tmp_path / "gone.png")
    with pytest.raises(UserError, match="image 0 is a int; it must be a path, a URL"):
        seen(3)


def test_operations_that_cannot_be_used_are_told():
    with pytest.raises(ConfigError, match="transform: unknown operation 'resise'"):
        Preprocessing.from_transform("resise(8)", *COLORS)
    with pytest.raises(ValueError, match="images of 5000 pixels; from 1 to 4096 can be"):
        Preprocessing(8, 8, operations="resize(5000)|resize(8)")
