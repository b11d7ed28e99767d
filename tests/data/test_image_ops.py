import io
import math
import pickle
import random
import re

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from samples import encode_image

from big_align.data.examples import BrokenExample
from big_align.data.images import decoding, image_ops
from big_align.data.images.given_images import read_image
from big_align.data.images.image_ops import OPERATIONS, Transform, open_view

RNG = random.Random(0)
PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
NOISE = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)


def decode(data: bytes) -> np.ndarray:
    return Transform("")(data, RNG)


def save(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_lossless_files_decode_to_their_pixels():
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {})):
        np.testing.assert_array_equal(decode(encode_image(PIXELS, kind, **options)), PIXELS)
    np.testing.assert_array_equal(Transform("")(PIXELS, RNG), PIXELS)


def test_gray_is_repeated():
    gray = PIXELS[..., 0]
    for data in (encode_image(gray), save(Image.fromarray(gray).convert("1").convert("L"))):
        pixels = decode(data)
        assert (pixels == pixels[..., :1]).all()
    np.testing.assert_array_equal(decode(encode_image(gray))[..., 2], gray)


def test_gray_of_16_bits_keeps_the_upper_8():
    deep = np.array([[0, 255, 256, 65535, 4660]], np.uint16)
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(decode(encode_image(deep, kind))[0, :, 0], [0, 0, 1, 255, 18])


def test_alpha_is_composited_on_white():
    """c a + 255 (1 - a) with a = 0, 128/255 and 1."""
    rgba = np.array([[[10, 20, 30, 0], [10, 20, 30, 128], [10, 20, 30, 255]]], np.uint8)
    wanted = [[[255, 255, 255], [132, 137, 142], [10, 20, 30]]]
    for data in (encode_image(rgba), encode_image(rgba, "WEBP", lossless=True, exact=True)):
        np.testing.assert_array_equal(decode(data), wanted)
    gray = save(Image.fromarray(rgba[..., [0, 3]], "LA"))
    np.testing.assert_array_equal(decode(gray)[0, :, 0], [255, 132, 10])


def test_palettes_with_and_without_transparency():
    image = Image.new("P", (3, 1))
    image.putpalette([200, 0, 0, 0, 100, 0, 0, 0, 50])
    image.putdata([0, 1, 2])
    wanted = [[[200, 0, 0], [0, 100, 0], [0, 0, 50]]]
    np.testing.assert_array_equal(decode(save(image)), wanted)
    wanted[0][1] = [255, 255, 255]
    np.testing.assert_array_equal(decode(save(image, transparency=1)), wanted)
    np.testing.assert_array_equal(decode(save(image, "GIF", transparency=1)), wanted)
    alphas = decode(save(image, transparency=bytes([255, 0, 255])))
    np.testing.assert_array_equal(alphas, wanted)


def test_a_transparent_color_of_rgb_is_white():
    data = save(Image.fromarray(np.uint8([[[1, 2, 3], [4, 5, 6]]])), transparency=(1, 2, 3))
    np.testing.assert_array_equal(decode(data), [[[255, 255, 255], [4, 5, 6]]])


def test_cmyk_is_converted():
    """Cyan with no black is (0, 255, 255); all black is black."""
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 16, 8))
    pixels = decode(save(image, "JPEG", quality=100, subsampling=0)).astype(int)
    assert np.abs(pixels[12, 8] - [0, 255, 255]).max() <= 3
    assert pixels[3, 8].max() <= 3


def test_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    data = encode_image(PIXELS, exif=exif)
    np.testing.assert_array_equal(decode(data), np.rot90(PIXELS, -1))


ELEMENT = "<tiff:Orientation>{}</tiff:Orientation>"


@pytest.mark.parametrize("form", ['tiff:Orientation="{}"', ELEMENT])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_orientation_in_xmp_is_applied_as_to_an_opened_image(kind, form):
    for orientation in (1, 6):
        xmp = f"<x:xmpmeta xmlns:x='adobe:ns:meta/'>{form.format(orientation)}</x:xmpmeta>"
        options = {"xmp": xmp.encode(), "lossless": True}
        if kind == "PNG":
            options = {"pnginfo": PngInfo()}
            options["pnginfo"].add_itxt("XML:com.adobe.xmp", xmp)
        data = encode_image(PIXELS, kind, **options)
        stored = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        found = decode(data)
        np.testing.assert_array_equal(found, np.rot90(stored, -1) if orientation == 6 else stored)
        np.testing.assert_array_equal(found, read_image(Image.open(io.BytesIO(data))))


def test_undecodable_files_are_broken_examples():
    whole = encode_image(NOISE, "JPEG")
    for data in (b"", b"<html>not found</html>", whole[:100], whole[: len(whole) // 2]):
        with pytest.raises(BrokenExample, match="the image cannot be"):
            decode(data)


def test_crops_keep_known_pixels():
    crop = Transform("central_crop(2, 3)")
    np.testing.assert_array_equal(crop(PIXELS, RNG), PIXELS[2:4, 2:5])
    np.testing.assert_array_equal(Transform("central_crop(6, 8)")(PIXELS, RNG), PIXELS)
    seen = set()
    for seed in range(300):
        rows = Transform("random_crop(4)")(PIXELS, random.Random(seed))
        top, left = np.argwhere((PIXELS == rows[0, 0]).all(-1))[0]
        np.testing.assert_array_equal(rows, PIXELS[top : top + 4, left : left + 4])
        seen.add((int(top), int(left)))
    assert seen == {(top, left) for top in range(3) for left in range(5)}


def test_flip_is_an_involution_and_commutes_with_crops():
    flip = "flip_horizontal(1.0)"
    apply = lambda text: Transform(text)(PIXELS, random.Random(1))  # noqa: E731
    np.testing.assert_array_equal(apply(flip), PIXELS[:, ::-1])
    np.testing.assert_array_equal(apply(f"{flip}|{flip}"), PIXELS)
    np.testing.assert_array_equal(apply(f"{flip}|central_crop(2)"), PIXELS[2:4, 3:5][:, ::-1])
    view = open_view(PIXELS)._replace(mirrored=True).crop(0, 1, 3, 2)
    np.testing.assert_array_equal(view.render(), PIXELS[:, ::-1][1:3, 0:3])


def test_flip_happens_with_its_probability():
    flip = Transform("flip_horizontal(0.25)")
    flips = sum((flip(PIXELS, random.Random(s)) != PIXELS).any() for s in range(2000))
    assert abs(flips - 500) < 100  # five standard deviations


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "nearest"])
def test_one_resampling_equals_resize_then_crop(method):
    """The pixels of a crop are those of the whole resized image."""
    whole = Transform(f"resize(40, 50, method={method!r})")(NOISE, RNG).astype(int)
    crop = Transform(f"resize(40, 50, method={method!r})|central_crop(32)")(NOISE, RNG)
    assert np.abs(whole[4:36, 9:41] - crop).max() <= 1
    by_pillow = Image.fromarray(NOISE).resize((50, 40), Image.Resampling[method.upper()])
    np.testing.assert_array_equal(whole, np.asarray(by_pillow))


def test_resize_small_keeps_the_aspect():
    assert Transform("resize_small(30)")(NOISE, RNG).shape == (30, 45, 3)
    assert Transform("resize_small(30)")(NOISE.swapaxes(0, 1), RNG).shape == (45, 30, 3)


@pytest.mark.parametrize(
    ("size", "resized"),
    [((640, 480), (298, 224)), ((500, 375), (298, 224)), ((427, 640), (224, 335)),
     ((500, 334), (335, 224)), ((224, 224), (224, 224)), ((3, 1000), (224, 74_666))],
)  # fmt: skip
def test_the_longer_side_is_rounded_down_as_published_models_saw_it(size, resized):
    """`int(224 * long / short)` in torchvision and transformers; numbers are height and width."""
    view = OPERATIONS["resize_small"](
        open_view(np.zeros((*size, 3), np.uint8)), random.Random(0), 224
    )
    assert (view.height, view.width) == resized


@pytest.mark.parametrize(
    ("to_even", "starts"), [(False, [0, 0, 1, 1, 2, 2, 3, 3]), (True, [0, 0, 1, 2, 2, 2, 3, 4])]
)
def test_half_of_an_odd_margin(to_even, starts):
    """torchvision's `int(round(margin / 2.0))` goes to even numbers, transformers' down."""
    crop = Transform(f"central_crop(3, half_to_even={to_even})")
    for margin, start in enumerate(starts):
        columns = np.arange(3 + margin, dtype=np.uint8)
        picture = np.broadcast_to(columns[None, :, None], (3, 3 + margin, 3))
        assert crop(np.ascontiguousarray(picture), RNG)[0, 0, 0] == start


def test_random_resized_crop_keeps_its_area_and_ratio():
    rows, columns = np.mgrid[:60, :90]
    place = np.stack([rows, columns, rows * 0], -1).astype(np.uint8)
    areas = []
    for seed in range(200):
        view = OPERATIONS["random_resized_crop"](
            open_view(place), random.Random(seed), 16, scale_min=0.2, scale_max=0.5
        )
        x0, y0, x1, y1 = view.box
        assert 0 <= x0 < x1 <= 90 and 0 <= y0 < y1 <= 60
        assert 0.72 <= (x1 - x0) / (y1 - y0) <= 1.37
        areas.append((x1 - x0) * (y1 - y0) / 5400)
        assert view.render().shape == (16, 16, 3)
    assert 0.19 < min(areas) < 0.25 and 0.45 < max(areas) < 0.51


def test_random_resized_crop_is_wide_as_often_as_high():
    crop, square = OPERATIONS["random_resized_crop"], open_view(np.zeros((300, 300, 3), np.uint8))
    options = {"scale_min": 0.1, "scale_max": 0.1, "ratio_min": 1 / 4, "ratio_max": 4.0}
    boxes = [crop(square, random.Random(seed), 8, **options).box for seed in range(400)]
    logs = [np.log((x1 - x0) / (y1 - y0)) for x0, y0, x1, y1 in boxes]
    assert abs(np.mean(logs)) < 0.16  # four standard deviations; uniform ratios have 0.6


def test_random_resized_crop_draws_again_what_stands_out():
    wide = open_view(np.zeros((20, 60, 3), np.uint8))

    def ratios(tries):
        for seed in range(300):
            crop = OPERATIONS["random_resized_crop"]
            x0, y0, x1, y1 = crop(wide, random.Random(seed), 8, tries=tries).box
            yield (x1 - x0) / (y1 - y0)

    assert max(ratios(tries=50)) < 1.4 < 1.8 < max(ratios(tries=1))


def test_a_large_jpeg_is_decoded_small_without_visible_change():
    y, x = np.mgrid[:1024, :1536]
    smooth = np.stack([y // 4, x // 6, (x + y) // 10], -1).astype(np.uint8)
    data = encode_image(smooth, "JPEG", quality=95)
    small = Transform("resize(64)|central_crop(56)")(data, RNG).astype(int)
    exact = Transform("resize(64)|central_crop(56)")(smooth, RNG)
    assert np.abs(small - exact).max() <= 3


def test_operations_after_pixel_operations_get_a_picture():
    whole = Transform("resize(40)|grayscale(1)")(NOISE, RNG)
    for after in ("central_crop(24)", "flip_horizontal(1)", "resize(20)", "random_crop(9, 17)"):
        at_once = Transform(f"resize(40)|grayscale(1)|{after}")(NOISE, random.Random(3))
        rng = random.Random(3)
        rng.random()  # the one that grayscale takes
        np.testing.assert_array_equal(at_once, Transform(after)(whole, rng))
    frame = "resize(40)|flip_horizontal(1)|central_crop(24)"
    before = Transform(f"{frame}|grayscale(1)")(NOISE, RNG)
    np.testing.assert_array_equal(before, whole[:, ::-1][8:32, 8:32])


def test_operations_on_pixels_need_a_whole_file():
    with pytest.raises(BrokenExample, match="the image cannot be decoded"):
        Transform("grayscale(1)")(encode_image(NOISE, "JPEG")[:900], RNG)


def test_no_chain_enlarges_an_image_without_bound(monkeypatch):
    """Chains of all operations on images of all shapes; what is only seen through is not made."""
    monkeypatch.setattr(decoding, "MOST_ENLARGED", 5000)
    made, render = [], image_ops.View.render_picture

    def watch(view):
        picture = render(view)
        made.append((math.prod(picture.size), math.prod(view.image.size)))
        return picture

    monkeypatch.setattr(image_ops.View, "render_picture", watch)
    frames = [
        "resize(40)",
        "resize(90)",
        "resize_small(24)",
        "random_resized_crop(24)",
        "resize(9)",
    ]
    colors = ["color_jitter(1, 1, 1, 0.5)", "grayscale(1)", "gaussian_blur(1)", "random_erasing(1)"]
    rng, refused = random.Random(0), 0
    for _ in range(200):
        chain = "|".join(rng.choices([*frames, *colors, "rand_augment(2, 9)"], k=5))
        shape = rng.choice([(1, 900), (900, 1), (60, 90), (3, 5)])
        try:
            Transform(chain)(np.zeros((*shape, 3), np.uint8), rng)
        except BrokenExample as error:
            assert re.search(r"enlarges the image from \d+ x \d+ to \d+ x \d+ pixels", str(error))
            refused += 1
    assert 20 < refused < 180
    assert all(pixels <= max(source, 5000) for pixels, source in made)


@pytest.mark.parametrize("shape", [(1, 8000), (8000, 1)])
def test_a_thread_of_an_image_is_broken_only_where_all_of_it_is_enlarged(shape):
    image = encode_image(np.full((*shape, 3), 7, np.uint8))
    with pytest.raises(BrokenExample, match="enlarges the image from .*8000.* to .*1792000"):
        Transform("resize_small(224)|color_jitter(1, 1, 1, 0)|central_crop(224)")(image, RNG)
    pixels = Transform("resize_small(224)|central_crop(224)|grayscale(1)")(image, RNG)
    assert pixels.shape == (224, 224, 3) and (pixels == 7).all()


def darken(picture: Image.Image, rng: image_ops.Rng, by: int) -> Image.Image:
    return picture.point([max(0, value - by) for value in range(256)] * 3)


def test_operations_on_pixels_can_be_registered(monkeypatch):
    """And other processes, where nothing is registered, import them where they are defined."""
    monkeypatch.setattr(image_ops, "OPERATIONS", dict(OPERATIONS))
    image_ops.register(image_ops.OnPixels(darken))
    transform = Transform("central_crop(2)|darken(3)")
    np.testing.assert_array_equal(transform(PIXELS + 9, RNG), PIXELS[2:4, 3:5] + 6)
    data = pickle.dumps(transform)
    monkeypatch.undo()
    assert "darken" not in OPERATIONS
    np.testing.assert_array_equal(pickle.loads(data)(PIXELS + 9, RNG), PIXELS[2:4, 3:5] + 6)


def test_parts_are_pure_functions_of_the_generator():
    transform = Transform("resize(40)|random_crop(32)|flip_horizontal")
    one, two, other = (transform(NOISE, random.Random(s)) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resize(72)|random_corp(64)", "unknown operation 'random_corp'.*known:.*random_crop"),
        ("resize", "missing a required argument: 'height'.*usage: resize"),
        ("resize('big')", "height='big' is not a whole number"),
        ("resize(0)", "height=0"),
        ("resize(72, methd='x')", "unexpected keyword argument 'methd'"),
        ("resize(72, method='x')", "method 'x' is none of nearest, bilinear"),
        ("resize(size)", "usage: resize"),
        ("flip_horizontal(-1)", "probability=-1 is not a number from 0 to 1;"),
        ("random_erasing(25)", "probability=25 is not a number from 0 to 1; usage: random_eras"),
        ("color_jitter(0.4, 0.4, 0.4, 0.6)", "hue=0.6 is not a number from 0 to 0.5"),
        ("color_jitter(-1, 0, 0, 0)", "brightness=-1 is not a number of at least 0"),
        ("color_jitter(0.4)", "missing a required argument: 'contrast'.*usage: color_jitter"),
        ("resize(8)|rand_augment(2, 11)", "magnitude=11 is not a number from 0 to 10"),
        ("rand_augment(0, 9)", "num_ops=0 is not a whole number of at least 1; usage: rand_aug"),
        ("rand_augment(2, 9, mstd=1)", "unexpected keyword argument 'mstd'.*magnitude: float"),
        (
            "rand_augment(2, 9, recipe='deit')",
            "recipe 'deit' is none of timm, albef; usage: rand",
        ),
        ("colour_jitter(1)", "unknown operation 'colour_jitter'.*color_jitter.*random_erasing"),
        ("resize(72)|", "does not read as"),
        ("resize(72), flip_horizontal", "unknown operation"),
        ("__import__('os')", "unknown operation"),
    ],
)
def test_wrong_transforms_are_explained(text, message):
    with pytest.raises(ValueError, match=message):
        Transform(text)


def test_a_crop_of_a_small_image_is_explained():
    with pytest.raises(ValueError, match=r"random_crop\(64, 64\) is larger.*6 high and 8 wide"):
        Transform("random_crop(64)")(PIXELS, RNG)
