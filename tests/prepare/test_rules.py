"""Decisions about the pairs of an image are those of a plain loop over all pairs."""

import random
from collections import Counter

import pytest

from big_align.core.errors import UserError
from big_align.prepare.rules import (
    ORDER,
    PRESETS,
    Kept,
    Pair,
    Rules,
    decide_group,
    judge_image,
    judge_length,
)
from big_align.prepare.shards import count_shards, find_place


@pytest.mark.parametrize(
    ("size", "failed"),
    [
        ((201, 201), []),
        ((200, 201), ["small"]),
        ((201, 602), []),
        ((603, 201), ["elongated"]),
        ((100, 300), ["small", "elongated"]),
    ],
)
def test_the_paper_wants_over_200_pixels_and_an_aspect_below_3(size, failed):
    assert judge_image(*size, "", Rules()) == failed
    assert judge_image(*size, "", PRESETS["none"]) == []
    assert judge_image(*size, "explicit", Rules()) == [*failed, "unsafe"]


def make_pair(file, row, place=0, text="a b c", failed=(), **changes):
    return Pair(file, row, place, text, 300, 300, 10, failed=failed)._replace(**changes)


def split(decided):
    verdicts = {each[0][:3]: each[1] for each in decided if not isinstance(each, Kept)}
    return verdicts, [each for each in decided if isinstance(each, Kept)]


PAIRS = [
    make_pair(1, 5, 0, "a dog"),
    make_pair(0, 9, 0, "A Dog"),
    make_pair(0, 9, 1, "two dogs"),
    make_pair(2, 1, 0, "buy now", ("shared",)),
    make_pair(3, 3, 0, "a hound"),
]


@pytest.mark.parametrize(
    ("duplicates", "verdicts", "kept"),
    [
        ("merge", {(1, 5, 0): ("repeated",)}, [(["A Dog", "two dogs", "a hound"], [(3, 3)])]),
        (
            "first",
            {(1, 5, 0): ("repeated",), (3, 3, 0): ("copied",)},
            [(["A Dog", "two dogs"], [])],
        ),
        ("keep", {}, [(["A Dog", "two dogs"], []), (["a dog"], []), (["a hound"], [])]),
    ],
)
def test_pairs_with_the_same_pixels(duplicates, verdicts, kept):
    rules = Rules(duplicates=duplicates)
    for seed in range(10):
        shuffled = random.Random(seed).sample(PAIRS, len(PAIRS))
        found, written = split(list(decide_group(shuffled, False, False, rules)))
        dropped = {key: failed for key, failed in found.items() if failed}
        assert dropped == {(2, 1, 0): ("shared",)} | verdicts and len(found) == len(PAIRS)
        assert [(each.texts, each.merged) for each in written] == kept


def test_an_image_that_is_dropped_takes_all_its_pairs_along():
    found, written = split(list(decide_group(PAIRS, True, True, Rules())))
    assert written == [] and set(found.values()) == {
        ("listed", "crowded"),
        ("listed", "crowded", "shared"),
    }
    for failed in found.values():
        assert list(failed) == [name for name in ORDER if name in failed]


def test_labels_of_copies_are_joined_and_an_example_needs_no_text():
    pairs = [make_pair(0, n, labels=(n % 2,)) for n in range(4)]
    _, (kept,) = split(list(decide_group(pairs, False, False, Rules())))
    assert kept.labels == [0, 1] and kept.texts == ["a b c"]
    alone = [make_pair(0, 0, -1, "", labels=(7,))]
    _, (kept,) = split(list(decide_group(alone, False, False, PRESETS["none"])))
    assert kept.labels == [7] and kept.texts == []


@pytest.mark.parametrize(("examples", "size"), [(1, 5), (5, 5), (6, 5), (1001, 100), (9973, 64)])
def test_shards_are_balanced_and_filled_in_order(examples, size):
    shards = count_shards(examples, size)
    places = [find_place(rank, examples, shards) for rank in range(examples)]
    sizes = Counter(shard for shard, _ in places)
    assert len(sizes) == shards and max(sizes.values()) - min(sizes.values()) <= 1
    assert max(sizes.values()) <= size
    assert places == [(shard, n) for shard in range(shards) for n in range(sizes[shard])]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_side": -1}, "min_side is -1; it must be at least 0, or none"),
        ({"max_aspect": float("nan")}, "max_aspect is nan"),
        ({"duplicates": "drop"}, "duplicates is 'drop'; it is merge, first, keep"),
        ({"min_unigrams": 30}, "min_unigrams is 30 and max_unigrams 20: no text has both"),
    ],
)
def test_numbers_that_no_pair_meets_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        Rules(**change)


def test_a_text_may_have_the_fewest_and_the_most_unigrams():
    found = [judge_length(unigrams, Rules()) for unigrams in (2, 3, 20, 21)]
    assert found == [["short"], [], [], ["long"]]
    assert judge_length(0, Rules(min_unigrams=None)) == judge_length(99, PRESETS["none"]) == []
