"""What is told of data is what the loader would find in them."""

import numpy as np
import pytest

from big_align.data.images.image_ops import Transform
from big_align.data.loading.inspection import Texts, inspect_source
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.shortening import Shortener
from big_align.data.text.tokenizers import WordTokenizer
from big_align.pages import data_page
from tests.data.samples import (
    BROKEN,
    break_some,
    encode_image,
    make_members,
    make_pixels,
    write_tar,
)

WORDS = ("number", "n", *map(str, range(200)))
TRANSFORM = "resize(6)|random_crop(4)"


def make_texts(length, longest=16, shorten="truncate"):
    seen = Shortener(WordTokenizer(WORDS, length, shorten))
    return Texts(length, WordTokenizer(WORDS, longest), lambda captions, labels: captions, seen)


def test_broken_examples_are_counted_by_kind(tmp_path):
    report = inspect_source(break_some(tmp_path, BROKEN), TRANSFORM, make_texts(8), pictures=0)
    assert (report.examples, report.read, report.shards) == (200, 200, 5)
    kinds = {fault.reason.partition(" (")[0]: fault for fault in report.faults}
    assert {kind: fault.count for kind, fault in kinds.items()} == {
        "the image cannot be decoded": sum(number % 2 for number in BROKEN),
        "the text is not UTF-8": sum(number % 2 == 0 for number in BROKEN),
    }
    assert kinds["the text is not UTF-8"].name == "train-00.tar: 000004"
    assert len(report.sizes) == 200 - len(BROKEN)


def test_numbers_of_a_set_that_is_counted_by_hand(tmp_path):
    sizes = [(8, 6), (10, 12), (8, 6), (8, 6)]  # the first and the last have the same bytes
    pixels = [np.full((h, w, 3), n % 3, np.uint8) for n, (w, h) in enumerate(sizes)]
    captions = [b"number 1 2 3", b"n", b"number 1 2 3", b"n strange"]
    members = []
    for number, (image, caption) in enumerate(zip(pixels, captions, strict=True)):
        members += [(f"{number}.png", encode_image(image)), (f"{number}.txt", caption)]
    source = TarSource(write_tar(tmp_path / "a.tar", [*members, ("9.txt", b"no image")]))
    report = inspect_source(source, TRANSFORM, make_texts(4))
    assert report.lost == 1 and report.faults == []
    assert report.sizes.tolist() == [list(size) for size in sizes]
    assert report.tokens.tolist() == [5, 2, 5, 3]  # [CLS] is one
    assert (report.cut, report.unknown) == (2, 1)
    assert report.images_twice.count == 1 and report.images_twice.total == 4
    assert report.images_twice.groups == [(2, "", ["a.tar: 0", "a.tar: 3"])]
    assert report.captions_twice.groups == [(2, "number 1 2 3", ["a.tar: 0", "a.tar: 2"])]


def test_images_with_more_pixels_than_training_takes_are_broken(tmp_path):
    sizes = {"small": (5, 6), "large": (6, 7)}
    members = []
    for name, size in sizes.items():
        image = encode_image(np.zeros((*size, 3), np.uint8))
        members += [(f"{name}.png", image), (f"{name}.txt", b"n")]
    source = TarSource(write_tar(tmp_path / "a.tar", members))
    for most, broken in ((29, 2), (30, 1), (41, 1), (42, 0)):
        report = inspect_source(source, "resize(4)", make_texts(4), max_pixels=most)
        assert sum(fault.count for fault in report.faults) == broken
        assert all(f"max_pixels={most}" in fault.reason for fault in report.faults)


def test_pictures_are_what_the_transform_makes_and_their_tokens_those_of_the_model(tmp_path):
    members = [m for number in range(30) for m in make_members(number)]
    source = TarSource(write_tar(tmp_path / "a.tar", members), caption="json.captions")
    report = inspect_source(source, TRANSFORM, make_texts(2), pictures=7, seed=5)
    assert len(report.pictures) == 7
    model = WordTokenizer(WORDS, 2)
    for picture in report.pictures:
        number = int(picture.name.rpartition(" ")[2])
        expected = Transform(TRANSFORM)(source.read(0, number).image, PositionRandom(5, number))
        np.testing.assert_array_equal(picture.pixels, expected)
        ids, _ = model(source.read_text(0, number)[0])
        assert [tokens[:2] for tokens in picture.texts] == list(map(model.pieces, ids.tolist()))


def test_a_sample_is_drawn_by_its_seed_and_all_of_them_is_no_sample(tmp_path):
    source = break_some(tmp_path, set())
    read = lambda **options: inspect_source(source, TRANSFORM, make_texts(8), **options)  # noqa: E731
    names = [[p.name for p in read(most=50, pictures=50, seed=seed).pictures] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2] and len(set(names[0])) == 50
    some, everything = read(most=200), read()
    assert some.tokens.tolist() == everything.tokens.tolist() and some.read == 200


def test_a_caption_that_stands_twice_with_one_image_is_no_duplicate(tmp_path):
    image = encode_image(make_pixels(0))
    members = [("0.png", image), ("0.json", b'{"captions": ["n 1", "n 1"]}')]
    source = TarSource(write_tar(tmp_path / "a.tar", members), caption="json.captions")
    report = inspect_source(source, TRANSFORM, make_texts(8))
    assert report.captions_twice.count == 0 and report.captions.tolist() == [2]


@pytest.mark.parametrize("way", ["truncate", "random", "block", "syntax"])
def test_what_a_visit_keeps_of_a_text_is_shown(tmp_path, way):
    texts = [f"{n} n 1 2 3 4 5 6 7" for n in range(8, 20)]
    members = []
    for number, text in enumerate(texts):
        members += [(f"{number:02}.png", encode_image(make_pixels(0)))]
        members += [(f"{number:02}.txt", text.encode())]
    source = TarSource(write_tar(tmp_path / "a.tar", members))
    report = inspect_source(source, TRANSFORM, make_texts(5, shorten=way))
    shown = [list(data_page._mark_texts(each, report.length)) for each in report.pictures]
    kinds = [[kind for kind, _ in text] for (text,) in shown]
    assert report.shorten == way and all(row.count("cut") == 5 for row in kinds)
    assert all(row[0] == "special" and row.count("") == 4 for row in kinds)
    assert (len(set(map(tuple, kinds))) > 1) == (way in ("random", "block"))
    (told,) = (tile.what for tile in data_page.summarize(report) if "longer than 5" in tile.what)
    assert told.endswith(data_page.KEPT[way])


@pytest.mark.parametrize("length", [3, 5])
def test_a_text_is_cut_when_the_tokenizer_of_the_model_drops_some_of_it(tmp_path, length):
    texts = ["n", "n 1", "n 1 2", "n 1 2 3", "n 1 2 3 4"]
    image = encode_image(make_pixels(0))
    members = []
    for number, text in enumerate(texts):
        members += [(f"{number}.png", image), (f"{number}.txt", text.encode())]
    source = TarSource(write_tar(tmp_path / "a.tar", members))
    report = inspect_source(source, TRANSFORM, make_texts(length))
    kept = WordTokenizer(WORDS, length)(texts)[1].sum(axis=1)
    assert report.cut == sum(len(t.split()) + 1 > k for t, k in zip(texts, kept, strict=True))
