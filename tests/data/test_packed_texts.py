import pickle

import pytest

from big_align.data.sources.listed_source import PackedTexts

TEXTS = ["a dog", "", "naïve 犬 🐕", "half \ud83d", "the end\n"]


def test_packed_texts_are_the_list_that_they_were_made_of():
    packed = PackedTexts(iter(TEXTS))
    assert list(packed) == TEXTS and len(packed) == 5
    assert [packed[n] for n in range(-5, 5)] == 2 * TEXTS
    for place in (slice(1, 3), slice(None, None, -2), slice(4, 99), slice(2, 2)):
        assert packed[place] == TEXTS[place]
    assert list(pickle.loads(pickle.dumps(packed))) == TEXTS
    for place in (5, -6):
        with pytest.raises(IndexError):
            packed[place]


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_nothing_can_be_packed(texts):
    assert list(PackedTexts(texts)) == texts
