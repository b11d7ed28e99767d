"""Normalization of texts, and rules about them (ALIGN §3), as functions of a text or of counts."""

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from big_align.core.digests import hash_bytes
from big_align.core.words import NO_TEXT, CharacterMap, fold_text, is_space, spell
from big_align.data.text.clean_texts import unescape

ROUNDS = 8  # of unescaping: pages escape twice, and markup may appear
TAG = r"</?[A-Za-z][^<>]*>"
TAGS, MARKUP = re.compile(TAG), re.compile(rf"{TAG}|<!--.*?-->")
JOINERS = "\u200c\u200d"  # part of the spelling of Persian, of Indian scripts, and of emoji
APOSTROPHES = "'\u2019\u02bc"
TEXT_ID_BYTES = 16
PAPER_TOKENS = 100_000_000
"""Unigrams and bigrams that are not rare (ALIGN §3)."""


def _keep(char: str) -> str:
    """Returns a space for white space, and nothing for what is no text but for joiners."""
    if is_space(char):
        return " "
    return "" if unicodedata.category(char) in NO_TEXT and char not in JOINERS else char


_CLEANED = CharacterMap(_keep)
_UNIGRAMS = CharacterMap(lambda char: "" if char in APOSTROPHES else spell(char))


def _remove_markup(text: str) -> str:
    # Where no comment ends, none is looked for: each of a thousand openings would read to the end.
    end = text.rfind("-->") + 3 if "-->" in text else 0
    return MARKUP.sub(" ", text[:end]) + TAGS.sub(" ", text[end:])


def normalize_text(text: str) -> str:
    """Returns a text without markup and control characters, in Unicode's NFC, on one line.

    Entities (`&amp;`) become characters, tags and comments of HTML are left out, and white space of
    any kind becomes single spaces.
    """
    for _ in range(ROUNDS):
        cleaned = unescape(text)
        cleaned = _remove_markup(cleaned) if "<" in cleaned else cleaned
        cleaned = unicodedata.normalize("NFC", cleaned.translate(_CLEANED))
        cleaned = " ".join(cleaned.split())
        if cleaned == text:
            break
        text = cleaned
    return text


def identify_text(text: str) -> bytes:
    """Returns sixteen bytes that are the same for texts that count as the same."""
    return hash_bytes(fold_text(text), TEXT_ID_BYTES)


def split_unigrams(text: str) -> list[str]:
    """Returns the words of a text, without case: runs of letters, marks and digits.

    Apostrophes are left out, and everything else separates words. Each character of Han and kana is
    a unigram; Thai, Lao, Khmer and Burmese, which have no spaces either, are split only at spaces.
    """
    return fold_text(text).translate(_UNIGRAMS).split()


def pair_up(unigrams: list[str]) -> list[str]:
    """Returns the bigrams of a text: neighbors, with a space between them."""
    return [f"{a} {b}" for a, b in zip(unigrams, unigrams[1:], strict=False)]


def name_tokens(unigrams: list[str], bigrams: bool) -> list[bytes]:
    """Returns the tokens of a text as they are counted: `1` before unigrams, `2` before bigrams."""
    pairs = pair_up(unigrams) if bigrams else []
    return [f"1{token}".encode() for token in unigrams] + [f"2{pair}".encode() for pair in pairs]


class TokenRule(NamedTuple):
    """Which tokens are rare."""

    min_count: int  # a token that occurs less often in the raw data is rare
    bigrams: bool  # whether bigrams count too
    told: str  # the rule, in words


def choose_min_count(histogram: Mapping[int, int], most: int) -> int:
    """Returns the lowest count that no more than `most` tokens reach.

    The histogram says how many occur n times. Those that occur equally often are rare together, or
    not at all.
    """
    lowest, reached = max(histogram, default=0) + 1, 0
    for count in sorted(histogram, reverse=True):
        reached += histogram[count]
        if reached > most:
            break
        lowest = count
    return lowest


def choose_token_rule(
    unigrams: Mapping[int, int],
    bigrams: Mapping[int, int],
    most: int | None,
    scale: bool,
    estimated: bool = False,
) -> TokenRule | None:
    """Returns which tokens are rare, by how many occur n times; None if none are.

    The paper's number drops nothing from data with fewer tokens than that, and a number that is
    scaled with their size drops nearly everything: most bigrams of a few million texts occur once.
    So in small data a rare token is a unigram that occurs once, with `scale`. `estimated` says that
    the numbers are from a sample of the tokens.
    """
    if most is None:
        return None
    about = "about " if estimated else ""
    kinds = sum(unigrams.values()) + sum(bigrams.values())
    if kinds > most:
        both = {n: unigrams.get(n, 0) + bigrams.get(n, 0) for n in {*unigrams, *bigrams}}
        lowest = choose_min_count(both, most)
        kept = sum(count for n, count in both.items() if n >= lowest)
        return TokenRule(
            lowest,
            True,
            f"a unigram or bigram that occurs fewer than {lowest:,} times: outside the "
            f"{about}{kept:,} most frequent of {about}{kinds:,} (at most {most:,} are asked for; "
            "equal ones are treated alike)",
        )
    if not scale:
        return None
    return TokenRule(
        2,
        False,
        f"a unigram that occurs once. The raw data have {about}{kinds:,} unigrams and bigrams, "
        f"fewer than the {most:,} of the paper, so its number would drop nothing: it is scaled to "
        "small data, where bigrams, most of which occur once, are not judged",
    )
