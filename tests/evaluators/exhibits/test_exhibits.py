"""What evaluations show is what they have measured, and stays as it is on its way to a page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from big_align.data.sources.array_source import ArraySource
from big_align.evaluators import found_tags
from big_align.evaluators.classification import Classification
from big_align.evaluators.exhibits.clusters import choose_members
from big_align.evaluators.exhibits.confusion import MOST, choose_classes, show_confusion
from big_align.evaluators.exhibits.exhibit import Examples, Finding, Item, encode
from big_align.evaluators.exhibits.retrieval import show_pairs
from big_align.evaluators.found_tags import FoundTags
from big_align.evaluators.retrieval import Retrieval, rank_of_match
from big_align.evaluators.zero_shot import ZeroShot
from big_align.pages.plots.exhibit_pictures import CELL, GAP, RIGHT, draw_exhibit
from tests.evaluators import tagged
from tests.evaluators.colors import ColorEmbedder, make_source, tokenize


def gray(number):
    return np.full((4, 4, 3), number, np.uint8)


class Classifier(ColorEmbedder):
    def classify_images(self, batches, count):
        return self.image_features(batches, count)


class Noisy(ColorEmbedder):
    """Embeds a text near the image that it describes."""

    def embed_texts(self, text, text_mask):
        noise = np.random.default_rng(3).normal(size=self.table.shape).astype(np.float32)
        rows = (self.table + noise)[text[:, 0]]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def retrieval():
    captions = [[f"color {n}"] for n in range(12)]
    image = np.broadcast_to(np.arange(12, dtype=np.uint8)[:, None, None, None], (12, 2, 2, 3))
    source = ArraySource(image, captions, None, "colors")
    return Retrieval(source, "resize(2)", tokenize)


def test_retrieval_shows_what_it_has_measured(retrieval):
    embedder = Noisy(np.random.default_rng(0).normal(size=(12, 6)))
    measured, pairs = retrieval.measure(embedder), retrieval.embed(embedder)
    assert measured.numbers == retrieval(embedder)
    ranks = rank_of_match(pairs.ztxt, pairs.zimg, pairs.owner, np.arange(12))
    assert 0 < np.mean(ranks < 1) < 1
    texts, _ = show_pairs(pairs, gray, count=4, k=5)
    assert [x.query.text for x in measured.show()[0].rows] == [x.query.text for x in texts.rows]
    _, by_image = show_pairs(pairs, gray, count=12, k=12)
    for row in by_image.rows:
        number = int(row.query.image[0, 0, 0])
        assert {x.text for x in row.found if x.right} == {f"color {number}"}
    some = show_pairs(pairs, gray, count=4, k=12)[0].rows
    assert len(some) == 4
    for row in some:
        number = pairs.captions.index(row.query.text)
        right = [item.right for item in row.found]
        assert right.index(True) == ranks[number] and sum(right) == 1


def test_the_seed_alone_decides_what_is_shown(retrieval):
    pairs = retrieval.embed(Noisy(np.random.default_rng(1).normal(size=(12, 4))))
    shown = [encode(x) for x in show_pairs(pairs, gray)]
    assert shown == [encode(x) for x in show_pairs(pairs, gray)]
    assert shown != [encode(x) for x in show_pairs(pairs, gray, seed=1)]


def test_confusions_are_counted_by_hand():
    scores = np.eye(3)[[0, 1, 1, 2, 0]]
    (shown,) = show_confusion(scores, np.array([0, 0, 1, 2, 2]), ["a", "b", "c"])
    assert shown.names == ["a", "b", "c"]
    assert shown.counts.tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]]


def test_of_many_classes_the_most_confused_are_shown_and_the_others_counted_together():
    count = 50
    label = np.repeat(np.arange(count), 4)
    taken = label.copy()
    taken[label == 40] = 41  # four times
    taken[np.flatnonzero(label == 7)[:3]] = 30
    (shown,) = show_confusion(np.eye(count)[taken], label, [str(n) for n in range(count)])
    chosen = choose_classes(taken, label, count)
    assert len(chosen) == MOST and {7, 30, 40, 41} <= set(chosen) and chosen == sorted(chosen)
    assert shown.names == [str(n) for n in chosen]
    at = shown.names.index
    assert shown.counts[at("40"), at("41")] == 4 and shown.counts[at("7"), at("30")] == 3
    assert (shown.counts.sum(axis=1) == 4).all() and "20 in" in shown.note
    # One that is taken for a class that is not shown stands in the last column.
    many = np.repeat(np.arange(count), 4)
    others = (many + 1 + np.arange(len(many)) % 3 * 7) % count
    (wide,) = show_confusion(np.eye(count)[others], many, [str(n) for n in range(count)])
    assert (wide.counts.sum(axis=1) == 4).all() and wide.counts[:, -1].sum() > 0


@pytest.mark.parametrize("kind", ["zero_shot", "classification"])
def test_the_diagonal_is_the_accuracy(kind):
    rng = np.random.default_rng(2)
    label = rng.integers(0, 4, 40)
    source = make_source(range(40), label.tolist())
    if kind == "zero_shot":
        table = rng.normal(size=(60, 5))
        evaluator = ZeroShot(source, "resize(2)", tokenize, ("0", "1", "2", "3"), ("a {}",))
        embedder = ColorEmbedder(table)
    else:
        evaluator = Classification(source, "resize(2)")
        embedder = Classifier(rng.normal(size=(40, 4)))
    measured = evaluator.measure(embedder)
    shown, *_ = measured.show()
    assert measured.numbers == evaluator(embedder)
    assert np.trace(shown.counts) / 40 == pytest.approx(measured.numbers["top1"])
    assert shown.counts.sum(axis=1).tolist() == np.bincount(label).tolist()


def test_members_of_a_cluster_are_others_with_that_label():
    shards = [np.array([[0, 1], [1, 0], [0, -1]]), np.zeros((0, 2), int), np.array([[1, -1]])]
    shown = choose_members(shards, gray, count=4, others=3, seed=0)
    assert len(shown.rows) == 4
    for row in shown.rows:
        number, cluster = int(row.query.image[0, 0, 0]), int(row.query.text.split()[-1])
        assert cluster == [0, 1, 0, 1][number]
        found = [int(item.image[0, 0, 0]) for item in row.found]
        # First those of which it is the nearest cluster.
        assert found == [n for n in {0: (0, 2, 1), 1: (1, 3, 0)}[cluster] if n != number]


def test_a_set_without_clusters_shows_nothing():
    assert choose_members([np.full((3, 2), -1)], gray, 4, 3, 0).rows == []


def test_an_image_survives_its_way_into_a_page():
    blocks = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8)
    pixels = blocks.repeat(8, 0).repeat(8, 1)
    exhibit = Examples("t", "n", [Finding(Item(pixels, "q"), [Item(text="x", right=True)])])
    encoded = encode(exhibit)
    address = encoded["rows"][0]["query"]["image"]
    file = io.BytesIO(base64.b64decode(address.removeprefix("data:image/webp;base64,")))
    assert np.abs(np.asarray(Image.open(file), int) - pixels).mean() < 12
    assert encoded["rows"][0]["found"] == [{"image": None, "text": "x", "right": True}]


def test_drawn_pictures_frame_what_is_right():
    rows = [Finding(Item(gray(50)), [Item(gray(90), right=True), Item(gray(90), right=False)])]
    drawn = draw_exhibit(Examples("title", "", rows))
    line = drawn[drawn.shape[0] - CELL]
    cells = [GAP + (CELL + GAP) * place for place in range(3)]
    colors = [tuple(line[x + 1].tolist()) for x in cells]
    assert colors == [(50, 50, 50), RIGHT, (90, 90, 90)]


def test_a_drawn_confusion_is_darker_where_more_is_and_errors_have_a_color_of_their_own():
    taken, label = [0] * 8 + [1] + [1] * 5 + [0] * 4, [0] * 9 + [1] * 9
    (shown,) = show_confusion(np.eye(2)[taken], np.array(label), "ab")
    assert shown.counts.tolist() == [[8, 1, 0], [4, 5, 0]]
    drawn = draw_exhibit(shown).astype(int)
    left, top = 80, 40
    cells = drawn[top + 2 :: 34, left + 2 :: 34][:2, :2]
    light = cells.sum(axis=-1)
    assert light[0, 0] < light[1, 1] and light[1, 0] < light[0, 1]
    red, _, blue = np.moveaxis(cells, -1, 0)
    assert ((red > blue) == [[False, True], [True, False]]).all()
    assert 255 - blue[0, 1] >= (255 - blue[1, 0]) / 2 > 60  # of a single error, too


def test_found_tags_are_shown_with_what_confirms_them(tmp_path, monkeypatch):
    monkeypatch.setattr(found_tags, "TagExtractor", tagged.Words)
    captions = [["a dog", "dog on grass"], ["a ball", "ball sky"]]
    source = tagged.make_source(captions)
    evaluator = FoundTags(source, "resize(2)", tagged.write_tags(tmp_path))
    measured = evaluator.measure(tagged.GivenLogits([[9, 1, 3, -9], [-9, 9, -9, 2]]))
    (shown,) = measured.show()
    found = {row.query.text: [(x.text, x.right) for x in row.found] for row in shown.rows}
    assert found == {
        "a dog": [("grass 0.95", True), ("ball 0.73", False)],
        "a ball": [("sky 0.88", True)],
    }
