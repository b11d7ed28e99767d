"""Pictures show the nearest, mark what is right, and are drawn from what was asked."""

import json

import numpy as np
import pytest
from matplotlib.colors import to_hex

from big_align.core.errors import UserError
from big_align.data.examples import Example
from big_align.data.sources.array_source import ArraySource
from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.retrieval import Pairs, choose_queries, find_nearest, show_pairs
from big_align.evaluators.exhibits.tags import Found, choose_images, show_found
from big_align.pages.plots import curves
from big_align.pages.plots.example_pictures import RIGHT, WRONG, draw_examples
from big_align.training.logs import metrics


def unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def pairs():
    """Three images; "same" describes the first two. The examples 0, 2 and 3 could be read."""
    angles = np.array([0.0, 1.0, 2.0])
    zimg = unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    captions = ["same", "first", "same", "second", "third"]
    owner = np.array([0, 0, 1, 1, 2])
    noise = np.random.default_rng(0).normal(size=(5, 2)) * 0.05
    return Pairs(zimg, unit(zimg[owner] + noise), captions, owner, np.array([0, 2, 3]))


def gray(number):
    return np.full((4, 4, 3), number, np.uint8)


def frame(axis):
    return to_hex(axis.spines["left"].get_edgecolor())


def test_the_nearest_by_hand_in_any_order_of_candidates():
    queries = np.float32([[1, 0], [0, 1]])
    candidates = unit(np.float32([[1, 1], [0, 1], [-1, 0], [1, 0.1]]))
    assert find_nearest(queries, candidates, 2).tolist() == [[3, 0], [1, 0]]
    order = np.array([2, 0, 3, 1])
    permuted = order[find_nearest(queries, candidates[order], 2)]
    assert permuted.tolist() == [[3, 0], [1, 0]]


def test_queries_depend_on_the_seed_alone_and_overlap_in_nothing():
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(30), 2)
    captions = [f"digit {image % 5}" for image in owner]
    pairs = Pairs(rng.normal(size=(30, 2)), rng.normal(size=(60, 2)), captions, owner, owner[::2])
    images, texts = choose_queries(pairs, 4, seed=3)
    assert (images, texts) == choose_queries(pairs, 4, seed=3)
    assert (images, texts) != choose_queries(pairs, 4, seed=4)
    assert len(images) == len(set(images)) == 4
    assert len({captions[row] for row in texts}) == 4
    assert not {owner[row] for row in texts} & set(images)


def test_a_caption_frames_every_image_that_it_describes(pairs):
    by_text, _ = show_pairs(pairs, gray, count=5, k=3)
    axes = np.reshape(draw_examples([by_text]).axes, (-1, 3))
    drawn = {row.query.text: line for row, line in zip(by_text.rows, axes, strict=True)}
    assert drawn.keys() == set(pairs.captions)
    for text, right in (("same", [0, 1]), ("first", [0]), ("second", [1]), ("third", [2])):
        shown = [int(axis.images[0].get_array()[0, 0, 0]) for axis in drawn[text]]
        assert sorted(shown) == pairs.number.tolist()
        green = [frame(axis) == RIGHT for axis in drawn[text]]
        assert green == [number in pairs.number[right] for number in shown]
        assert text in drawn[text][0].texts[0].get_text()
    shown = [int(axis.images[0].get_array()[0, 0, 0]) for axis in drawn["third"]]
    assert shown == pairs.number[[2, 1, 0]].tolist()  # the nearest first


def test_an_image_lists_different_captions_and_marks_its_own(pairs):
    _, by_image = show_pairs(pairs, gray, count=3, k=4)
    figure = draw_examples([by_image])
    for row, text in zip(by_image.rows, figure.axes[1::2], strict=True):
        lines = {line.get_text(): line.get_color() for line in text.texts}
        assert len(lines) == len(text.texts) == 4
        right = {text for text, color in lines.items() if color == RIGHT}
        own = {0: {"same", "first"}, 2: {"same", "second"}, 3: {"third"}}
        assert right == own[int(row.query.image[0, 0, 0])] == set(list(lines)[: len(right)])


def test_fewer_images_than_asked_for_are_all(pairs):
    figure = draw_examples(show_pairs(pairs, gray, count=1, k=5))
    assert sum(bool(axis.images) for axis in figure.axes) == 3 + 1


NAMES = ("dog", "ball", "grass", "sky")


def make_found(logits, given, missed):
    logits, given, missed = np.float32(logits), np.array(given, bool), np.array(missed, bool)
    captions = [[f"caption {n}"] for n in range(len(logits))]
    number = 10 * np.arange(len(logits))
    return Found(logits, given, missed, ~given & (logits > 0), captions, number)


def test_tags_stand_in_the_order_of_their_probability():
    found = make_found(
        [[0] * 4, [3.0, 1.0, 2.0, 0.5]], [[1] * 4, [1, 0, 0, 0]], [[0] * 4, [0, 1, 0, 1]]
    )
    (shown,) = show_found(found, NAMES, gray, count=1, most=2)
    (row,) = shown.rows
    assert row.query.text == "caption 1" and (row.query.image == 10).all()
    assert [(x.text, x.right) for x in row.found] == [("grass 0.88", False), ("ball 0.73", True)]


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


def test_texts_stand_beside_their_image_and_right_ones_are_green():
    tags = [Item(text="dog 0.90", right=True), Item(text="$ky 0.70", right=False)]
    rows = [
        Finding(Item(gray(1), "a " * 80), tags),
        Finding(Item(gray(2), "the sky"), []),
        Finding(Item(gray(3), "a ball"), tags[:1]),
    ]
    figure = draw_examples([Examples("Tags", "", rows)], columns=2)
    pictures, texts = figure.axes[::2], figure.axes[1::2]
    assert [int(axis.images[0].get_array()[0, 0, 0]) for axis in pictures[:3]] == [1, 2, 3]
    assert not pictures[3].axison and not texts[3].texts
    lines = {text.get_text(): text.get_color() for text in texts[0].texts}
    assert len(texts[0].texts) == 5
    assert lines["dog 0.90"] == RIGHT and lines[r"\$ky 0.70"] == WRONG
    assert any(line.endswith("…") for line in lines)
    assert [text.get_text() for text in texts[1].texts] == ["the sky", "nothing found"]
    figure.canvas.draw()


def test_pixels_are_those_of_the_example_across_shards():
    class Shards(ArraySource):
        def read(self, shard, index):
            return Example("", gray(10 * shard + index), [], ())

    source = Shards(np.zeros((5, 4, 4, 3), np.uint8), [["a"]] * 5)
    source.shard_sizes = np.array([2, 0, 3])
    pixels = read_pixels(source, size=8)
    shown = [pixels(number) for number in range(5)]
    assert [picture[0, 0, 0] for picture in shown] == [0, 1, 20, 21, 22]
    assert {picture.shape for picture in shown} == {(8, 8, 3)}


def test_a_picture_that_cannot_be_read_is_named():
    class Torn(ArraySource):
        def read(self, shard, index):
            if index == 1:
                raise RecursionError("too deep")
            return Example("", b"no image", [], ())

    pixels = read_pixels(Torn(np.zeros((2, 4, 4, 3), np.uint8), [["a"]] * 2))
    for number, message in ((0, "array: 0: the image cannot be"), (1, "array: 1: .*too deep")):
        with pytest.raises(UserError, match=message):
            pixels(number)


def test_curves_hold_the_metrics_of_the_file(tmp_path):
    records = [{"step": s, "loss": 1 / s, "images_per_second": 9.0} for s in range(1, 5)]
    records += [{"step": s, "a/r1": s / 10, "a/r5": s / 5, "b/top1": "nan"} for s in (2, 4)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(text)
    figure = curves.draw_curves(metrics.read_metrics(str(tmp_path)))
    drawn = {axis.get_title(): axis.lines for axis in figure.axes}
    assert list(drawn) == ["loss", "a", "b"]
    np.testing.assert_allclose(drawn["loss"][0].get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4])
    assert [line.get_label() for line in drawn["a"]] == ["r1", "r5"]
    np.testing.assert_allclose(drawn["a"][1].get_xydata(), [[2, 0.4], [4, 0.8]])


def test_a_run_shorter_than_a_line_of_metrics_shows_its_evaluation():
    figure = curves.draw_curves({"digits/top1": [(2, 0.5)]})
    assert [axis.get_title() for axis in figure.axes] == ["digits"]
    with pytest.raises(UserError, match="nothing to draw yet: neither a loss nor an evaluation"):
        curves.draw_curves({"images_per_second": [(2, 9.0)]})


def test_a_workdir_without_metrics_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl: train with this workdir first"):
        metrics.read_metrics(str(tmp_path))
