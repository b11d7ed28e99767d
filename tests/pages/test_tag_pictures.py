"""Pictures of found tags show the most probable ones and mark those that a caption confirms."""

import numpy as np

from big_align.evaluators.exhibits.tags import (
    Found,
    FoundTag,
    TaggedImage,
    choose_images,
    describe_image,
)
from big_align.plots import tag_pictures
from big_align.plots.retrieval_pictures import RIGHT, WRONG

NAMES = ("dog", "ball", "grass", "sky")


def make_found(logits, given, missed):
    logits, given, missed = np.float32(logits), np.array(given, bool), np.array(missed, bool)
    captions = [[f"caption {n}"] for n in range(len(logits))]
    number = 10 * np.arange(len(logits))
    return Found(logits, given, missed, ~given & (logits > 0), captions, number)


def gray(number):
    return np.full((4, 4, 3), number, np.uint8)


def test_tags_stand_in_the_order_of_their_probability():
    found = make_found(
        [[0] * 4, [3.0, 1.0, 2.0, 0.5]], [[1] * 4, [1, 0, 0, 0]], [[0] * 4, [0, 1, 0, 1]]
    )
    image = describe_image(found, 1, NAMES, gray, most=2)
    assert image.caption == "caption 1" and (image.pixels == 10).all()
    assert [tag.name for tag in image.tags] == ["grass", "ball"]
    assert [tag.confirmed for tag in image.tags] == [False, True]
    np.testing.assert_allclose([tag.probability for tag in image.tags], [0.8808, 0.7311], atol=1e-4)


def test_images_with_found_tags_come_first_and_depend_on_the_seed_alone():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 4)) - 1.5
    found = make_found(logits, np.zeros((40, 4)), np.zeros((40, 4)))
    some = found.found.any(axis=1)
    chosen = choose_images(found, 40, seed=1)
    assert sorted(chosen) == list(range(40)) and 5 < some.sum() < 35
    assert some[chosen].tolist() == sorted(some.tolist(), reverse=True)
    first = choose_images(found, 5, seed=1)
    assert first == chosen[:5] and some[first].all()
    assert first != choose_images(found, 5, seed=2)


def test_tags_that_a_caption_confirms_are_green():
    tags = [FoundTag("dog", 0.9, True), FoundTag("$ky", 0.7, False)]
    images = [
        TaggedImage(gray(1), "a " * 80, tags),
        TaggedImage(gray(2), "the sky", []),
        TaggedImage(gray(3), "a ball", tags[:1]),
    ]
    figure = tag_pictures.draw_tags(images)
    pictures, texts = figure.axes[::2], figure.axes[1::2]
    assert [int(axis.images[0].get_array()[0, 0, 0]) for axis in pictures[:3]] == [1, 2, 3]
    assert not pictures[3].axison and not texts[3].texts
    lines = {text.get_text(): text.get_color() for text in texts[0].texts}
    assert lines["dog  0.90"] == RIGHT and lines[r"\$ky  0.70"] == WRONG
    assert len(lines) <= tag_pictures.LINES and any(line.endswith("…") for line in lines)
    assert [text.get_text() for text in texts[1].texts] == ["the sky", "no tag found"]
    figure.canvas.draw()
