"""Texts are normalized, split and judged as the page says."""

import random
import time

import pytest

from big_align.prepare import text_rules
from big_align.prepare.text_rules import (
    choose_min_count,
    choose_token_rule,
    identify_text,
    normalize_text,
    pair_up,
    split_unigrams,
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (" a\t dog\r\n on\u00a0grass ", "a dog on grass"),
        ("fish &amp; chips &#8211; &quot;best&quot;", 'fish & chips – "best"'),
        ("twice &amp;amp; escaped", "twice & escaped"),
        ("<b>bold</b> and<br/>broken <!-- note -->", "bold and broken"),
        ("a &lt;i&gt;hidden&lt;/i&gt; tag", "a hidden tag"),
        ("i <3 dogs, 1 < 2 > 0", "i <3 dogs, 1 < 2 > 0"),
        ("zero\x00byte soft\u00adhyphen \ufeffmark", "zerobyte softhyphen mark"),
        ("cafe\u0301", "café"),
        ("می\u200cروم", "می\u200cروم"),
        ("a <!-- b <!-- c --> d <!-- e", "a d <!-- e"),
        ("", ""),
    ],
)
def test_a_text_is_normalized(raw, clean):
    assert normalize_text(raw) == clean


def test_comments_that_do_not_end_are_read_once():
    """Not once for each opening, which took most of an hour for the longest text."""
    text = "<!--" * 2**17
    start = time.monotonic()
    assert normalize_text(text) == text
    assert time.monotonic() - start < 10


def test_normalizing_twice_is_normalizing_once():
    draw = random.Random(0)
    pieces = ["&amp;", "&lt;", "b>", "<", ">", "e\u0301", "\x07", " ", "\u2028", "dog", "&#x3c;"]
    for _ in range(500):
        text = "".join(draw.choices(pieces, k=9))
        once = normalize_text(text)
        assert normalize_text(once) == once and once == once.strip()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A dog's Day-out, 2017!", ["a", "dogs", "day", "out", "2017"]),
        ("file_frankfurt_airport.jpg", ["file", "frankfurt", "airport", "jpg"]),
        ("STRASSE straße ﬁsh", ["strasse", "strasse", "fish"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("草の上の犬 dog", ["草", "の", "上", "の", "犬", "dog"]),
        ("개가 풀밭에", ["개가", "풀밭에"]),
        ("... 🐶 !", []),
        ("❤️ ☀️🏖️✈️ 1️⃣", ["1"]),
        ("I ❤️ dogs", ["i", "dogs"]),
    ],
)
def test_unigrams_are_words_of_any_script(text, words):
    assert split_unigrams(normalize_text(text)) == words


def test_texts_that_differ_in_case_or_width_are_the_same():
    assert identify_text("Ｄｏｇ") == identify_text("dog") != identify_text("dogs")
    assert pair_up(["a", "b", "c"]) == ["a b", "b c"] and pair_up(["a"]) == []


def test_the_least_count_keeps_as_many_tokens_as_are_asked_for():
    draw = random.Random(1)
    for _ in range(200):
        counts = [draw.randint(1, 9) for _ in range(draw.randint(1, 40))]
        histogram = {n: counts.count(n) for n in counts}
        most = draw.randint(0, 45)
        lowest = choose_min_count(histogram, most)
        assert sum(n >= lowest for n in counts) <= most
        # those that occur next to as often would be too many, or there are none
        rarer = max((n for n in counts if n < lowest), default=0)
        assert not rarer or sum(n >= rarer for n in counts) > most


def test_small_data_are_judged_by_unigrams_and_it_is_said():
    unigrams, bigrams = {1: 4, 2: 3}, {1: 9}
    scaled = choose_token_rule(unigrams, bigrams, text_rules.PAPER_TOKENS, True)
    assert (scaled.min_count, scaled.bigrams) == (2, False) and "scaled" in scaled.told
    assert choose_token_rule(unigrams, bigrams, 100, False) is None
    assert choose_token_rule(unigrams, bigrams, None, True) is None
    exact = choose_token_rule(unigrams, bigrams, 5, True)
    assert (exact.min_count, exact.bigrams) == (2, True)
    assert "the 3 most frequent of 16" in exact.told
