import pickle
import random

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from samples import encode_image

from big_align.data.images import pixel_ops, rand_augment
from big_align.data.images.image_ops import Transform
from big_align.data.loading.shuffle import PositionRandom

NOISE = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
SMOOTH = np.asarray(Image.fromarray(NOISE[:5, :7]).resize((56, 40), Image.Resampling.BICUBIC))
GRAY = np.repeat(NOISE[..., :1], 3, axis=-1)
TIMM, ALBEF = rand_augment.RECIPES["timm"], rand_augment.RECIPES["albef"]
WITHOUT_MAGNITUDE = {"autocontrast", "equalize", "invert"}


def apply(text: str, pixels: np.ndarray = NOISE, seed: int = 0) -> np.ndarray:
    return Transform(text)(pixels, PositionRandom(seed, 0))


def run(operation, pixels, *arguments) -> np.ndarray:
    picture = Image.fromarray(np.asarray(pixels, np.uint8))
    return np.asarray(operation(picture, *arguments))


def strengthen(name, pixels, fraction, sign, recipe=TIMM) -> np.ndarray:
    strength = rand_augment.Strength(fraction, sign, recipe)
    return run(rand_augment.OPERATIONS[name], pixels, strength)


def row(*values) -> np.ndarray:
    """A picture of gray pixels in a row."""
    return np.repeat(np.uint8(values)[None, :, None], 3, axis=-1)


@pytest.mark.parametrize(
    "text",
    ["color_jitter(0, 0, 0, 0)", "color_jitter(1, 1, 1, 0.5, probability=0)", "grayscale(0)",
     "gaussian_blur(0)", "gaussian_blur(1, 0, 0)", "random_erasing(0)"],
)  # fmt: skip
def test_no_arguments_do_nothing(text):
    np.testing.assert_array_equal(apply(text), NOISE)


@pytest.mark.parametrize("name", sorted(TIMM.operations))
@pytest.mark.parametrize("sign", [1, -1])
def test_magnitude_0_is_the_identity(name, sign):
    """But for posterize, whose range starts at 4 bits."""
    if name in WITHOUT_MAGNITUDE:
        for fraction in (0.3, 1.0):
            changed = strengthen(name, SMOOTH, fraction, sign)
            np.testing.assert_array_equal(changed, strengthen(name, SMOOTH, 0.0, 1))
        return
    wanted = NOISE & 0b11110000 if name == "posterize" else NOISE
    np.testing.assert_array_equal(strengthen(name, NOISE, 0.0, sign), wanted)


def test_brightness_and_contrast_by_hand():
    np.testing.assert_array_equal(
        run(pixel_ops.adjust_brightness, row(0, 10, 100, 200), 1.5), row(0, 15, 150, 255)
    )
    np.testing.assert_array_equal(
        run(pixel_ops.adjust_brightness, row(0, 10, 100, 200), 0.5), row(0, 5, 50, 100)
    )
    np.testing.assert_array_equal(  # the mean is 100
        run(pixel_ops.adjust_contrast, row(20, 80, 100, 200), 0.5), row(60, 90, 100, 150)
    )
    np.testing.assert_array_equal(
        run(pixel_ops.adjust_contrast, row(20, 80, 100, 200), 2.0), row(0, 60, 100, 255)
    )


def test_saturation_by_hand():
    """The luma of (200, 100, 50) is 0.299 x 200 + 0.587 x 100 + 0.114 x 50 = 124.2."""
    pixels = np.uint8([[[200, 100, 50]]])
    saturate = pixel_ops.adjust_saturation
    np.testing.assert_array_equal(run(saturate, pixels, 0.0), [[[124, 124, 124]]])
    np.testing.assert_array_equal(run(saturate, pixels, 0.5), [[[162, 112, 87]]])
    np.testing.assert_array_equal(apply("grayscale(1)", pixels), [[[124, 124, 124]]])


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.63, 1.0, 1.37, 1.9])
def test_adjustments_are_those_of_pillow(factor):
    """On which torchvision's and timm's stand."""
    for adjust, enhancer in (
        (pixel_ops.adjust_brightness, ImageEnhance.Brightness),
        (pixel_ops.adjust_contrast, ImageEnhance.Contrast),
        (pixel_ops.adjust_saturation, ImageEnhance.Color),
    ):
        wanted = np.asarray(enhancer(Image.fromarray(NOISE)).enhance(factor))
        np.testing.assert_array_equal(run(adjust, NOISE, factor), wanted)


def test_hue_by_hand():
    red_to_blue = np.uint8([[[200, 0, 0], [200, 100, 0], [150, 50, 100], [7, 7, 7]]])
    shift = pixel_ops.shift_hue
    for turn, channels in ((1 / 3, [2, 0, 1]), (-1 / 3, [1, 2, 0])):
        np.testing.assert_array_equal(run(shift, red_to_blue, turn), red_to_blue[..., channels])
    opposite = [[[0, 200, 200], [0, 100, 200], [50, 150, 100], [7, 7, 7]]]
    for turn in (0.5, -0.5):
        np.testing.assert_array_equal(run(shift, red_to_blue, turn), opposite)
    np.testing.assert_array_equal(run(shift, [[[200, 0, 0]]], 1 / 12), [[[200, 100, 0]]])


def test_hue_keeps_value_and_chroma_and_goes_back():
    for turn in (-0.5, -0.21, -0.01, 1e-9, 0.07, 0.3, 0.499):
        there = run(pixel_ops.shift_hue, NOISE, turn)
        np.testing.assert_array_equal(there.max(-1), NOISE.max(-1))
        np.testing.assert_array_equal(there.min(-1), NOISE.min(-1))
        back = run(pixel_ops.shift_hue, there, -turn).astype(int)
        assert np.abs(back - NOISE).max() <= 1
    np.testing.assert_array_equal(run(pixel_ops.shift_hue, NOISE, 1e-9), NOISE)


@pytest.mark.parametrize("turn", [-0.4, -0.1, 0.05, 0.33])
def test_hue_agrees_with_pillow(turn):
    """Whose hue has 8 bits: a step of it is 6/255 of the chroma."""
    hue, saturation, value = Image.fromarray(SMOOTH).convert("HSV").split()
    hue = hue.point([round(h + 255 * turn) % 255 for h in range(256)])
    wanted = np.asarray(Image.merge("HSV", (hue, saturation, value)).convert("RGB"))
    got = run(pixel_ops.shift_hue, SMOOTH, turn).astype(int)
    assert np.abs(got - wanted).max() <= 8


def test_gray_stays_gray():
    for factor in (0.0, 0.4, 1.8):
        np.testing.assert_array_equal(run(pixel_ops.adjust_saturation, GRAY, factor), GRAY)
        np.testing.assert_array_equal(run(pixel_ops.shift_hue, GRAY, factor - 1), GRAY)
    np.testing.assert_array_equal(apply("color_jitter(0, 0, 1, 0.5)|grayscale(1)", GRAY), GRAY)
    for seed in range(20):
        pixels = apply("color_jitter(0.8, 0.8, 0.8, 0.2)", GRAY, seed)
        assert (pixels == pixels[..., :1]).all()


def test_jitter_draws_its_factors_uniformly_and_its_orders_equally(monkeypatch):
    drawn = []
    for name in ("adjust_brightness", "adjust_contrast", "adjust_saturation", "shift_hue"):
        record = lambda picture, amount, name=name: drawn.append((name, amount)) or picture  # noqa: E731
        monkeypatch.setattr(pixel_ops, name, record)
    rng, count = random.Random(0), 1200
    for _ in range(count):
        pixel_ops.color_jitter(Image.fromarray(NOISE), rng, 0.4, 1.6, 0.0, 0.1)
    amounts = {name: [a for n, a in drawn if n == name] for name, _ in drawn}
    for name, low, high in (
        ("adjust_brightness", 0.6, 1.4), ("adjust_contrast", 0.0, 2.6), ("shift_hue", -0.1, 0.1)
    ):  # fmt: skip
        fractions, _ = np.histogram(amounts[name], 4, (low, high))
        assert fractions.sum() == count
        assert np.abs(fractions - count / 4).max() < 5 * np.sqrt(count / 4)
    assert set(amounts["adjust_saturation"]) == {1.0}
    orders = [tuple(n for n, _ in drawn[i : i + 4]) for i in range(0, len(drawn), 4)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24 and max(counts) < 90 and min(counts) > 15  # 50, deviation 7


def test_blur_keeps_flat_color_and_mean_and_takes_variance():
    flat = np.full((20, 20, 3), (10, 100, 200), np.uint8)
    np.testing.assert_array_equal(apply("gaussian_blur(1, 2, 2)", flat), flat)
    mild, strong = (apply(f"gaussian_blur(1, {s}, {s})").astype(float) for s in (0.7, 2.0))
    assert NOISE.std() > 1.5 * mild.std() > 3 * strong.std()
    assert abs(strong.mean() - NOISE.mean()) < 2


def test_blur_draws_its_deviation_uniformly(monkeypatch):
    drawn, filter_of = [], pixel_ops.ImageFilter.GaussianBlur
    record = lambda sigma: drawn.append(sigma) or filter_of(sigma)  # noqa: E731
    monkeypatch.setattr(pixel_ops.ImageFilter, "GaussianBlur", record)
    rng, count = random.Random(0), 400
    for _ in range(count):
        pixel_ops.gaussian_blur(Image.fromarray(NOISE[:2, :2]), rng, 1.0, 0.5, 1.5)
    fractions, _ = np.histogram(drawn, 4, (0.5, 1.5))
    assert fractions.sum() == count
    assert np.abs(fractions - count / 4).max() < 5 * np.sqrt(count / 4)


def test_erasing_touches_one_rectangle_of_the_areas_and_aspects_asked_for():
    areas, ratios, values = [], [], []
    flat = np.full((100, 120, 3), 1, np.uint8)
    for seed in range(300):
        touched = (apply("random_erasing(1)", flat, seed) != flat).any(-1)
        rows, columns = np.flatnonzero(touched.any(1)), np.flatnonzero(touched.any(0))
        box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        assert touched[box].mean() > 0.99 and touched.sum() == touched[box].sum()
        height, width = touched[box].shape
        areas.append(height * width / 12000)
        ratios.append(height / width)
        values.append(apply("random_erasing(1)", flat, seed)[box].reshape(-1, 3))
    assert 0.019 < min(areas) < 0.03 and 0.3 < max(areas) < 0.34
    assert 0.28 < min(ratios) < 0.33 and 3 < max(ratios) < 3.55  # sides are whole pixels
    assert abs(np.mean(np.log(ratios))) < 0.16  # four standard deviations; uniform ratios have 0.4
    values = np.concatenate(values) / 255
    np.testing.assert_allclose(values.mean(0), pixel_ops.IMAGENET_MEAN, atol=0.01)
    np.testing.assert_allclose(values.std(0), pixel_ops.IMAGENET_STD, atol=0.015)  # cut at 0, 1
    assert np.abs(np.corrcoef(values.T) - np.eye(3)).max() < 0.01


def test_erasing_happens_with_its_probability_and_leaves_the_source():
    flat = np.full((16, 16, 3), 1, np.uint8)
    times = sum((apply("random_erasing(0.25)", flat, seed) != 1).any() for seed in range(800))
    assert abs(times - 200) < 62  # five standard deviations
    assert (flat == 1).all()
    np.testing.assert_array_equal(apply("random_erasing(1)", flat[:1, :1]), flat[:1, :1])


def test_solarize_posterize_and_invert_by_hand():
    """Magnitude 5: threshold 128, 4 - 2 = 2 bits, 55 added below 128."""
    values = row(0, 63, 64, 127, 128, 255)
    for name, wanted in (
        ("solarize", (0, 63, 64, 127, 127, 0)),
        ("posterize", (0, 0, 64, 64, 128, 192)),
        ("solarize_add", (55, 118, 119, 182, 128, 255)),
        ("invert", (255, 192, 191, 128, 127, 0)),
    ):
        np.testing.assert_array_equal(strengthen(name, values, 0.5, 1), row(*wanted))
    assert strengthen("posterize", values, 1.0, 1).max() == 0
    np.testing.assert_array_equal(strengthen("solarize", NOISE, 1.0, 1), 255 - NOISE)


@pytest.mark.parametrize("pixels", [NOISE, SMOOTH, NOISE // 3 + 40, GRAY[:3, :3] * 0 + 9])
def test_tables_of_histograms_are_those_of_pillow(pixels):
    picture = Image.fromarray(pixels)
    for name, reference in (
        ("autocontrast", ImageOps.autocontrast), ("equalize", ImageOps.equalize)
    ):  # fmt: skip
        wanted = np.asarray(reference(picture)).astype(int)
        assert np.abs(strengthen(name, pixels, 0.5, 1) - wanted).max() <= 1


def test_moves_by_hand():
    """Magnitude 10 on 40 rows and 56 columns; what moves in has the mean color."""
    right, up = (strengthen(n, NOISE, 1.0, s) for n, s in
                 (("translate_x", 1), ("translate_y", -1)))  # fmt: skip
    np.testing.assert_array_equal(right[:, 25:], NOISE[:, :-25])  # 0.45 x 56 = 25.2
    np.testing.assert_array_equal(up[:-18], NOISE[18:])  # 0.45 x 40
    assert TIMM.fill == (124, 116, 104)
    assert (right[:, :25] == TIMM.fill).all() and (up[-18:] == TIMM.fill).all()


def test_shears_and_rotations_are_linear_maps():
    """Of a picture whose channels are its coordinates; checked where the source is inside."""
    y, x = np.mgrid[:64, :64].astype(float)
    place = np.stack([2 * x + 50, 2 * y + 50, 0 * x], -1)
    angle = np.deg2rad(30)
    for name, sign, source_x, source_y in (
        ("shear_x", 1, x + 0.3 * (y + 0.5), y),
        ("shear_y", -1, x, y - 0.3 * (x + 0.5)),
        ("rotate", 1, *_turn(x, y, angle)),
        ("rotate", -1, *_turn(x, y, -angle)),
    ):
        got = strengthen(name, place, 1.0, sign).astype(float)
        inside = (source_x > 0) & (source_x < 63) & (source_y > 0) & (source_y < 63)
        wanted = np.stack([2 * source_x + 50, 2 * source_y + 50], -1)
        assert inside.mean() > 0.5
        assert np.abs(got[..., :2] - wanted)[inside].max() <= 1.01
        outside = (source_x < -1) | (source_x > 64) | (source_y < -1) | (source_y > 64)
        assert (got[outside] == TIMM.fill).all() and outside.any()


def _turn(x, y, angle):
    """Where a counter-clockwise turn about the middle takes its pixels from; y points down."""
    x, y = x - 31.5, y - 31.5
    return (
        np.cos(angle) * x - np.sin(angle) * y + 31.5,
        np.sin(angle) * x + np.cos(angle) * y + 31.5,
    )


def test_albef_moves_by_pixels_and_brightens_by_its_own_table():
    """Magnitude 7 of a picture of 256 pixels: 7 pixels, and a factor of 0.1 + 1.8 x 0.7 = 1.36."""
    wide = np.random.default_rng(1).integers(0, 256, (256, 256, 3), np.uint8)
    for sign, kept, moved_in in ((1, np.s_[7:], np.s_[:7]), (-1, np.s_[:-7], np.s_[-7:])):
        came = np.s_[:-7] if sign == 1 else np.s_[7:]
        right, down = (strengthen(f"translate_{axis}", wide, 0.7, sign, ALBEF) for axis in "xy")
        np.testing.assert_array_equal(right[:, kept], wide[:, came])
        np.testing.assert_array_equal(down[kept], wide[came])
        assert (right[:, moved_in] == 128).all() and (down[moved_in] == 128).all()
        bright = strengthen("brightness", row(0, 50, 100, 200), 0.7, sign, ALBEF)
        np.testing.assert_array_equal(bright, row(0, 68, 136, 255))
    sharp = strengthen("sharpness", SMOOTH, 0.7, 1, ALBEF)
    wanted = ImageEnhance.Sharpness(Image.fromarray(SMOOTH)).enhance(1.36)
    np.testing.assert_array_equal(sharp, np.asarray(wanted))
    np.testing.assert_array_equal(strengthen("identity", wide, 0.7, 1, ALBEF), wide)
    far = strengthen("translate_x", wide, 0.7, 1)
    np.testing.assert_array_equal(far[:, 81:], wide[:, :-81])  # timm's: 0.45 x 0.7 x 256 = 80.6


def record(monkeypatch, name, times, num_ops, magnitude) -> tuple[np.ndarray, ...]:
    """What is drawn: numbers of operations, fractions and signs."""
    drawn = []
    recipe = rand_augment.RECIPES[name]
    for number, operation in enumerate(recipe.operations):
        monkeypatch.setitem(
            rand_augment.OPERATIONS,
            operation,
            lambda picture, by, n=number: drawn.append((n, by.fraction, by.sign)) or picture,
        )
    rng = random.Random(1)
    for _ in range(times):
        rand_augment.rand_augment(Image.fromarray(NOISE), rng, num_ops, magnitude, name)
    return tuple(map(np.array, zip(*drawn, strict=True)))


@pytest.mark.parametrize(("name", "count", "std"), [("timm", 15, 0.5), ("albef", 10, 0.0)])
def test_operations_are_drawn_uniformly_and_their_magnitudes_normally(
    monkeypatch, name, count, std
):
    times = 6000
    numbers, fractions, signs = record(monkeypatch, name, times, 2, 6.0)
    assert abs(len(numbers) - times) < 5 * np.sqrt(times / 2)  # half of two each
    counts = np.bincount(numbers, minlength=count)
    assert len(counts) == count
    assert np.abs(counts - times / count).max() < 5 * np.sqrt(times / count)
    assert abs(signs.mean()) < 5 / np.sqrt(times)
    if std == 0:
        assert (fractions == 0.6).all()
        return
    assert abs(10 * fractions.mean() - 6) < 0.05 and abs(10 * fractions.std() - std) < 0.03
    assert abs((fractions < 0.6).mean() - 0.5) < 0.04
    assert abs((fractions < 0.65).mean() - 0.841) < 0.03
    ends = [record(monkeypatch, name, 1, 200, end)[1] for end in (0.0, 10.0)]
    assert ends[0].min() == 0 and ends[1].max() == 1


def test_albef_draws_nothing_that_changes_colors():
    left_out = {"invert", "posterize", "solarize", "solarize_add", "color", "contrast"}
    assert set(ALBEF.operations) == (set(TIMM.operations) - left_out) | {"identity"}


CHAIN = (
    "resize(28)|random_resized_crop(24)|flip_horizontal|rand_augment(3, 9)"
    "|color_jitter(0.4, 0.4, 0.4, 0.1)|grayscale(0.2)|gaussian_blur(0.5)|random_erasing(0.5)"
)


def test_the_whole_chain_is_a_pure_function_of_the_generator():
    shape = (24, 24, 3)
    first, again = ([apply(CHAIN, NOISE, seed) for seed in range(40)] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert all(pixels.shape == shape and pixels.dtype == np.uint8 for pixels in first)
    assert len({pixels.tobytes() for pixels in first}) == 40


def test_a_pickled_chain_makes_the_same():
    chain = Transform(CHAIN)
    again = pickle.loads(pickle.dumps(chain))
    for number in range(8):
        image = encode_image(np.roll(SMOOTH, 3 * number, 0), "JPEG")
        made = [each(image, PositionRandom(3, number)) for each in (chain, again)]
        np.testing.assert_array_equal(*made)
