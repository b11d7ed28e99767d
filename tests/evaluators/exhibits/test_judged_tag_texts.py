"""Texts of found tags beside captions, by a model that judges."""

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.evaluators.exhibits.tag_texts import measure_fit, write_texts
from big_align.evaluators.exhibits.tags import Found
from big_align.objectives.parts.tag_texts import TagTexts, choose_written
from tests.objectives import test_idea

NAMES = ("dog", "grass", "ball")


def make_found(found, captions):
    found = np.array(found, bool)
    nothing = np.zeros_like(found)
    return Found(np.zeros(found.shape), nothing, nothing, found, captions, np.arange(len(found)))


def test_texts_are_of_images_with_tags_and_a_caption():
    tagged = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    found = make_found(tagged, [["one", "uno"], ["two"], ["three"], []])
    rows, captions, tags = write_texts(found, NAMES, found.found)
    assert rows.tolist() == [0, 2]
    assert captions == ["one", "three"] and tags == ["dog ball", "grass"]


def test_one_image_with_tags_is_no_comparison():
    with pytest.raises(UserError, match="found in 1 images .* lower the evaluator's threshold"):
        found = make_found([[1, 0, 0], [0, 0, 0]], [["one"], ["two"]])
        write_texts(found, NAMES, found.found)


@pytest.mark.slow
@pytest.mark.parametrize("retain", [True, False])
def test_a_judged_text_is_the_one_that_training_writes(retain):
    """Token for token, also where not all tags fit."""
    objective, _, _, batch, outputs = test_idea.encoded(retain=retain)
    finder = objective.finder
    given, hits = (np.asarray(x) for x in finder.find(batch, outputs["logits"]))
    found = make_found(hits, [["a caption"]] * len(hits))
    chosen = choose_written(given, hits, retain)
    written = TagTexts(test_idea.TAGS, test_idea.TOKENIZER).keep_fitting(chosen)
    rows, _, texts = write_texts(found, test_idea.NAMES, written)
    fed, fed_mask = (np.asarray(x)[:, -1] for x in finder.join_texts(batch, outputs["logits"]))
    ids, mask = test_idea.TOKENIZER(texts)
    np.testing.assert_array_equal(mask, fed_mask[rows])
    np.testing.assert_array_equal(np.where(mask, ids, 0), fed[rows])
    empty, empty_mask = test_idea.TOKENIZER([""])
    others = np.setdiff1d(np.arange(len(fed)), rows)
    np.testing.assert_array_equal(fed_mask[others], np.repeat(empty_mask, len(others), 0))
    np.testing.assert_array_equal(fed[others], np.repeat(empty, len(others), 0))
    assert (written != chosen).any() == retain


def test_cosines_are_with_the_own_text_and_with_that_of_another():
    zimg, ztxt = np.eye(3), np.eye(3)[[1, 1, 0]]
    fit = measure_fit(zimg, ztxt)
    assert fit.own.tolist() == [0, 1, 0]
    # Image n is put beside the text of image n - 1.
    assert fit.other.tolist() == [1, 1, 0]
