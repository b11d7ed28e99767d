"""What enters training is shown as it is, and only where there are images."""

import numpy as np
import pytest

from big_align.data.text.tokenizers import WordTokenizer
from big_align.evaluators.exhibits.first_batch import SHOWN, show_batch, take_first

TOKENIZER = WordTokenizer(("a", "dog", "cat"), 5)


def make_batch(count=2, **fields):
    image = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 3), np.uint8)
    text, text_mask = TOKENIZER(["a dog", "a cat on a mat"] * (count // 2))
    return {"image": image, "text": text, "text_mask": text_mask, **fields}


def test_images_stand_beside_their_texts_labels_and_clusters():
    batch = make_batch(label=np.array([7, -1]), clusters=np.array([[3, -1], [-1, -1]]))
    (shown,) = show_batch(batch, TOKENIZER)
    texts = [[item.text for item in row.found] for row in shown.rows]
    assert texts == [["[CLS] a dog", "label 7", "clusters 3"], ["[CLS] a cat [UNK] a"]]
    for row, image in zip(shown.rows, batch["image"], strict=True):
        assert (row.query.image == image).all()


def test_several_texts_and_views_of_an_image_are_all_shown():
    batch = make_batch(4)
    several = {k: batch[k].reshape(2, 2, *batch[k].shape[1:]) for k in batch}
    (shown,) = show_batch(several, TOKENIZER)
    assert shown.rows[0].query.text == "[CLS] a dog · [CLS] a cat [UNK] a"
    found = np.stack([[item.image for item in row.found] for row in shown.rows])
    assert (found == several["image"]).all()
    several["text_mask"][:, 1] = False  # a text that does not exist
    assert show_batch(several, TOKENIZER)[0].rows[1].query.text == "[CLS] a dog"


def test_without_texts_the_images_are_in_a_row():
    (shown,) = show_batch({"image": make_batch()["image"]}, TOKENIZER)
    assert [len(row.found) for row in shown.rows] == [2] and shown.rows[0].has_images


@pytest.mark.parametrize(
    "features",
    [
        {"image_embedding": np.zeros((2, 3), np.float32)},
        {"image": np.zeros((2, 4, 4, 3), np.float32)},
        {"image": np.zeros((2, 0, 0, 3), np.uint8)},
    ],
)
def test_where_no_pixels_are_read_nothing_is_shown(features):
    batch = make_batch()
    del batch["image"]
    assert show_batch(batch | features, TOKENIZER) == []


def test_what_is_taken_stays_when_the_loader_fills_its_memory_again():
    batch = make_batch(2 * SHOWN)
    taken = take_first(batch)
    before = taken["image"].copy()
    batch["image"][:] = 0
    assert len(before) == SHOWN and (taken["image"] == before).all()
