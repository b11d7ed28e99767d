"""Counts of words, and vocabularies that spell what they were learned from."""

import collections
import random
import string

import numpy as np
import pytest

from big_align.core.errors import UserError
from big_align.data.examples import Caption
from big_align.data.text import vocabulary
from big_align.data.text.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from big_align.data.text.vocabulary import learn_vocabulary, measure_spelling, write_vocabulary
from big_align.data.text.word_counts import (
    Characters,
    choose_characters,
    count_texts,
    find_lone_characters,
    weigh_languages,
)

CHINESE = [chr(0x4E00 + number) for number in range(3000)]


def make_chinese(rng: random.Random, sentences: int = 400) -> list[str]:
    """Sentences of 3000 characters, the n-th about as often as 1/n, each at least once."""
    weights = [1 / (n + 1) for n in range(len(CHINESE))]
    drawn = CHINESE + rng.choices(CHINESE, weights, k=40 * sentences - len(CHINESE))
    rng.shuffle(drawn)
    return ["".join(drawn[n : n + 40]) + "，ok 3。" for n in range(0, len(drawn), 40)]


def make_words(rng: random.Random, count: int = 300) -> list[str]:
    """Texts of several scripts, with accents, punctuation, digits and pictures."""
    alphabet = string.printable + "¿¡$€¥½№“”…—"
    alphabet += "äöüßéèçğıİøþæčřžůąęłδωжщыѐאבגسلامक्षि한국어がギー東京🐶👩‍🚀"
    pick = lambda: "".join(rng.choices(alphabet, k=rng.randint(1, 12)))  # noqa: E731
    return [" ".join(pick() for _ in range(rng.randint(1, 9))) for _ in range(count)]


def learn(texts, tmp_path, size, coverage=1.0, lowercase=True):
    """Returns the tokenizer of a vocabulary, and how it was learned."""
    counts = count_texts(texts, lowercase)
    learned = learn_vocabulary(weigh_languages(counts), size, coverage)
    path = str(tmp_path / "v.txt")
    write_vocabulary(learned.pieces, path)
    return WordPieceTokenizer(path, 512, lowercase), learned, counts


@pytest.mark.parametrize("lowercase", [True, False])
def test_full_coverage_never_meets_an_unknown_word(tmp_path, lowercase):
    rng = random.Random(0)
    texts = make_words(rng) + make_chinese(rng, 80)
    tokenizer, learned, _ = learn(texts, tmp_path, 7000, lowercase=lowercase)
    text, _ = tokenizer(texts)
    bad = [texts[row] for row in np.flatnonzero((text == tokenizer.unknown_id).any(axis=1))]
    assert bad == [] and learned.characters.dropped == () and learned.characters.share == 1
    assert len(set(learned.pieces)) == len(learned.pieces) <= 7000


def test_three_thousand_chinese_characters_are_all_spelled(tmp_path):
    """The learner's own limit of 1000 made three characters of ten unknown, without a word."""
    texts = make_chinese(random.Random(1))
    tokenizer, learned, counts = learn(texts, tmp_path, 3100)
    assert set(CHINESE) <= set(learned.pieces)
    assert not {f"##{character}" for character in CHINESE} & set(learned.pieces)
    text, text_mask = tokenizer(texts)
    assert not (text == tokenizer.unknown_id).any()
    with pytest.raises(UserError, match="have 3005 .* 100% of all: these need a size of 3013 "):
        learn(texts, tmp_path, 3012)
    assert len(learn(texts, tmp_path, 3013)[1].pieces) == 3013
    # most of the text is spelled by few of the characters, and the rest is counted
    tokenizer, fewer, _ = learn(texts, tmp_path, 3100, 0.9)
    assert 300 < len(fewer.characters.kept) < 2000
    assert 0.9 <= fewer.characters.share < 0.901
    found = measure_spelling(str(tmp_path / "v.txt"), counts)[""]
    # "ok" is one piece of two characters; all others are a piece each
    pieces = sum(len(text.replace("ok ", "o")) for text in texts)
    assert found.texts == len(texts) and found.length == pytest.approx(pieces / len(texts))
    unknown = sum(text.count(c) for text in texts for c in fewer.characters.dropped)
    assert found.unknown == pytest.approx(unknown / pieces)


@pytest.mark.parametrize("coverage", [0.3, 0.9, 0.99, 0.9999, 1.0])
def test_coverage_is_the_fewest_characters_that_make_up_the_share(coverage):
    rng = random.Random(2)
    words = {text: rng.randint(1, 50) for text in " ".join(make_words(rng)).split()}
    counts = collections.Counter("".join(word * n for word, n in words.items()))
    chosen = choose_characters(words, coverage)
    total = sum(counts.values())
    share = sum(counts[c] for c in chosen.kept) / total
    assert share == pytest.approx(chosen.share) and share >= coverage
    assert sum(counts[c] for c in chosen.kept[:-1]) < coverage * total
    rarest = min(counts[c] for c in chosen.kept)
    assert all(counts[c] <= rarest for c in chosen.dropped)
    assert set(chosen.kept) | set(chosen.dropped) == set(counts)
    assert len(chosen.kept) + len(chosen.dropped) == len(counts)


def test_coverage_by_hand():
    words = {"aab": 3, "c": 1}  # a 6, b 3, c 1
    assert choose_characters(words, 0.6) == Characters(("a",), ("b", "c"), 0.6)
    assert choose_characters(words, 0.61) == Characters(("a", "b"), ("c",), 0.9)
    for coverage in (0.0, -1.0, 1.01, float("nan")):
        with pytest.raises(UserError, match="it must be above 0 and at most 1"):
            choose_characters(words, coverage)


def test_words_with_a_dropped_character_are_unknown_and_no_others(tmp_path):
    texts = ["the dog sat on the mat"] * 200 + ["the cat is жdd", "a zebra"]
    tokenizer, learned, _ = learn(texts, tmp_path, 200, 0.9985)
    dropped = set(learned.characters.dropped)
    assert dropped and "ж" in dropped
    for text in dict.fromkeys(texts):
        ids, mask = tokenizer([text])
        unknown = int((ids == tokenizer.unknown_id).sum())
        assert unknown == sum(bool(dropped & set(word)) for word in text.split())


def test_a_word_of_more_than_a_hundred_bytes_takes_no_pieces(tmp_path):
    texts = ["a dog", "x" * 101, "ð" * 50, "ð" * 51]
    tokenizer, learned, _ = learn(texts, tmp_path, 60)
    assert learned.long_words == 2 and "x" not in learned.pieces
    text, _ = tokenizer(texts)
    assert (text == tokenizer.unknown_id).any(axis=1).tolist() == [False, True, False, True]


def test_punctuation_and_chinese_stand_alone():
    alone = find_lone_characters(["a", "é", "ж", "3", ".", "-", "“", "東", "が", "한"])
    assert alone == {".", "-", "“", "東"}


def test_languages_are_counted_apart_and_add_up():
    rng = random.Random(3)
    texts = [Caption(text, rng.choice(["en", "de", ""])) for text in make_words(rng, 100)]
    counts = count_texts(texts)
    assert {name: found.texts for name, found in counts.items()} == collections.Counter(
        text.language for text in texts
    )
    for language, found in counts.items():
        alone = [str(text) for text in texts if text.language == language]
        assert found.words == weigh_languages(count_texts(alone))
    everything = weigh_languages(count_texts([str(text) for text in texts]))
    assert weigh_languages(counts) == everything == weigh_languages(count_texts(texts))


def test_temperature_counts_a_rare_language_more_often():
    texts = [Caption("a dog", "en")] * 64 + [Caption("ein hund", "de")]
    counts = count_texts(texts)
    for temperature, times in ((1.0, 1), (2.0, 8), (3.0, 16), (float("inf"), 64)):
        words = weigh_languages(counts, temperature)
        assert words == {"a": 64, "dog": 64, "ein": times, "hund": times}


def test_spelling_is_measured_as_the_tokenizer_spells_whole_texts(tmp_path):
    rng = random.Random(4)
    texts = [Caption(text, "ab"[n % 2]) for n, text in enumerate(make_words(rng, 120))]
    tokenizer, _, counts = learn(texts, tmp_path, 600, 0.98)
    found = measure_spelling(str(tmp_path / "v.txt"), counts)
    for language in "ab":
        text, text_mask = tokenizer([str(t) for t in texts if t.language == language])
        pieces = int(text_mask.sum()) - 2 * len(text)
        unknown = int((text == tokenizer.unknown_id).sum())
        assert unknown > 0 and found[language].texts == len(text)
        assert found[language].length == pytest.approx(pieces / len(text))
        assert found[language].unknown == pytest.approx(unknown / pieces)


@pytest.mark.slow_repeats
@pytest.mark.parametrize("size", [60, 80])
def test_the_threshold_is_the_largest_that_gives_enough_pieces(monkeypatch, size):
    """What is searched equals what is found by trying every threshold."""
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    rng = random.Random(7)
    stems = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(20)]
    texts = [" ".join(rng.choice(stems) + rng.choice(stems) for _ in range(4)) for _ in range(40)]
    words = weigh_languages(count_texts(texts))
    ordered = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    params = learner.Params(None, None, 4, None, 50, None, size, None, True, "##", [])
    # parts of words occur more often than words
    tried = (learner.learn_with_thresh(ordered, n, params) for n in range(60, 1, -1))
    expected = next(pieces for pieces in tried if len(pieces) + 5 >= size)
    monkeypatch.setattr(vocabulary, "SLACK", -1)  # no sooner than the very threshold
    pieces = learn_vocabulary(words, size, 1.0).pieces[5:]
    assert len(pieces) == size - 5 and sorted(pieces[:16]) == sorted(expected[:8] + pieces[8:16])
    longer = [piece for piece in expected if len(piece.removeprefix("##")) > 1]
    assert pieces[16:] == longer[: size - 21]


def test_the_order_of_texts_changes_no_piece(tmp_path):
    texts = make_words(random.Random(5), 100)
    pieces = learn(texts, tmp_path, 600)[1].pieces
    random.Random(6).shuffle(texts)
    assert learn(texts, tmp_path, 600)[1].pieces == pieces
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
