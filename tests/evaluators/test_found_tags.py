"""Tags that the first caption left out: what the model finds of them, and what frequency does."""

import numpy as np
import pytest

from big_align.evaluators import found_tags
from big_align.evaluators.found_tags import FoundTags
from tests.evaluators.tagged import GivenLogits, Words, make_source, write_tags

CAPTIONS = [["a dog", "dog on grass", "dog ball"], ["a ball", "grass"], ["the sky", "a sky"]]
#         dog  ball  grass  sky
LOGITS = [[9, 2, -1, 1], [-1, 9, 1, -1], [1, -1, -1, 9]]


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(found_tags, "TagExtractor", Words)


def make(folder, captions=CAPTIONS, **options):
    source = make_source(captions, broken=options.pop("broken", ()))
    return FoundTags(source, "resize(2)", write_tags(folder), **options)


def test_scores_by_hand(tmp_path):
    for batch_size in (2, 8):
        result = make(tmp_path)(GivenLogits(LOGITS, batch_size))
        # Missed are ball and grass, grass, nothing. Found beside the given ones are ball and sky,
        # grass, dog: two of four are right, of three that are missed.
        assert result["precision"] == pytest.approx(2 / 4)
        assert result["recall"] == pytest.approx(2 / 3)
        assert result["f1"] == pytest.approx(4 / 7)
        assert result["found_per_image"] == pytest.approx(4 / 3)
        assert result["missed_per_image"] == 1
        # Only ball and grass are missed somewhere. ball: images 0 and 2, the first is it. grass: of
        # all three, image 1 comes first and the other two tie.
        assert result["map"] == pytest.approx((1 + (1 + 2 / 3) / 2) / 2)
        assert result["frequent_map"] == pytest.approx((1 / 2 + 2 / 3) / 2)
        # The most frequent but given: ball, dog, dog; one is right. The second: grass, grass, ball;
        # two are. A third of the images has a second one.
        assert result["frequent_precision"] == pytest.approx((1 + 2 / 3) / 4)
        assert result["frequent_recall"] == pytest.approx((1 + 2 / 3) / 3)


def test_the_given_captions_decide_what_is_missed(tmp_path):
    found = make(tmp_path).find(GivenLogits(LOGITS))
    assert found.captions == [["a dog"], ["a ball"], ["the sky"]]
    assert found.given.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert found.missed.tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert found.found.tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]]
    two = make(tmp_path, given=2).find(GivenLogits(LOGITS))
    assert two.missed.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    none = make(tmp_path, given=0).find(GivenLogits(LOGITS))
    assert not none.given.any() and none.missed.sum() == 6


def test_the_frequent_ones_found_by_the_model_score_as_the_baseline(tmp_path):
    """A recognizer that has learned nothing but frequency is no better than frequency."""
    frequent = np.broadcast_to([4.0, 3.0, 2.0, 1.0], (3, 4))
    for top_k in (1, 2, 3):
        result = make(tmp_path, top_k=top_k)(GivenLogits(frequent))
        assert result["found_per_image"] == top_k
        for name in ("precision", "recall", "map"):
            assert result[name] == pytest.approx(result[f"frequent_{name}"])


def test_logits_of_given_tags_change_nothing(tmp_path):
    logits = np.float32(LOGITS)
    other = np.where(logits == 9, -9, logits)
    assert make(tmp_path)(GivenLogits(other)) == make(tmp_path)(GivenLogits(logits))


def test_a_model_that_finds_nothing_scores_nothing(tmp_path):
    result = make(tmp_path)(GivenLogits(np.full((3, 4), -9.0)))
    for name in ("precision", "recall", "f1", "found_per_image", "frequent_precision"):
        assert result[name] == 0


def test_unreadable_images_do_not_count(tmp_path):
    kept = [0, 2]
    expected = make(tmp_path, [CAPTIONS[n] for n in kept])(GivenLogits([LOGITS[n] for n in kept]))
    evaluate = make(tmp_path, broken=(1,), max_broken_fraction=0.5)
    assert evaluate(GivenLogits(LOGITS)) == expected
    assert evaluate.find(GivenLogits(LOGITS)).number.tolist() == kept


def test_what_does_not_fit_is_one_error(tmp_path):
    with pytest.raises(ValueError, match="given = -1"):
        make(tmp_path, given=-1)
    with pytest.raises(ValueError, match="top_k = -2"):
        make(tmp_path, top_k=-2)
    with pytest.raises(ValueError, match="must read all captions"):
        make(tmp_path, [["a dog"], ["a ball"], ["sky"]])(GivenLogits(LOGITS))
    with pytest.raises(ValueError, match="recognizes 2 tags, and .*tags.json has 4"):
        make(tmp_path)(GivenLogits(np.zeros((3, 2))))
