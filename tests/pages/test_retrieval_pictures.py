"""Pictures show the nearest, mark what is right, and are drawn from what was asked."""

import json

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from big_align.core.errors import UserError
from big_align.data.examples import Example
from big_align.data.sources.array_source import ArraySource
from big_align.evaluators.exhibits.pixels import read_pixels
from big_align.evaluators.exhibits.retrieval import Pairs, choose_queries, find_nearest
from big_align.plots import curves, retrieval_pictures
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
    figure = Figure()
    retrieval_pictures.draw_nearest_images(figure, pairs, gray, queries=[0, 4], k=3)
    for row, (near, right) in enumerate([([0, 1, 2], [0, 1]), ([2, 1, 0], [2])]):
        axes = figure.axes[3 * row : 3 * row + 3]
        shown = [int(axis.images[0].get_array()[0, 0, 0]) for axis in axes]
        assert shown == pairs.number[near].tolist()
        green = [frame(axis) == retrieval_pictures.RIGHT for axis in axes]
        assert green == [image in right for image in near]
    assert "same" in figure.axes[0].texts[0].get_text()


def test_an_image_lists_different_captions_and_marks_its_own(pairs):
    figure = Figure()
    retrieval_pictures.draw_nearest_captions(figure, pairs, gray, queries=[1], k=4)
    lines = {text.get_text(): text.get_color() for text in figure.axes[1].texts}
    assert len(lines) == len(figure.axes[1].texts) == 4
    assert set(list(lines)[:2]) == {"same", "second"}
    right = {text for text, color in lines.items() if color == retrieval_pictures.RIGHT}
    assert right == {"same", "second"}


def test_fewer_images_than_asked_for_leave_room_empty(pairs):
    figure = retrieval_pictures.draw_retrieval(pairs, gray, images=[0], captions=[1], k=5)
    assert sum(bool(axis.images) for axis in figure.axes) == 3 + 1


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
