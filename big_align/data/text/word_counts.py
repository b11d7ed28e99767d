"""How often texts have each word and each character, language by language."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from big_align.core.errors import UserError
from big_align.data.examples import language_of
from big_align.data.text.clean_texts import clean_for_bert
from big_align.data.text.temperature import share_by_temperature
from big_align.data.text.wordpieces import split_words


@dataclasses.dataclass
class TextCounts:
    """How many texts of a language there are, and how often they have each word."""

    texts: int = 0
    words: collections.Counter = dataclasses.field(default_factory=collections.Counter)


def count_texts(texts: Iterable[str], lowercase: bool = True) -> dict[str, TextCounts]:
    """Counts words as BERT's basic tokenizer splits them, and therefore as WordPieceTokenizer does.

    The counts are by language (`examples.Caption`); "" has the texts without one.
    """
    counts: dict[str, TextCounts] = {}
    for text in texts:
        found = counts.setdefault(language_of(text), TextCounts())
        found.texts += 1
        found.words.update(split_words(clean_for_bert(text, lowercase)))
    return counts


def weigh_languages(
    counts: Mapping[str, TextCounts], temperature: float = 1.0
) -> collections.Counter:
    """Adds up the words of all languages as if texts were drawn by temperature.

    A word of a language with n_l texts is counted p_l / n_l times, with p_l ~ n_l^(1/T)
    (`share_by_temperature`), divided by the least of these weights: no word is counted less often
    than it occurs, and with T = 1 none more often.
    """
    texts = {language: found.texts for language, found in counts.items()}
    shares = share_by_temperature(texts, temperature)
    weights = {language: share / texts[language] for language, share in shares.items()}
    least = min(weights.values(), default=1.0)
    total: collections.Counter = collections.Counter()
    for language, found in counts.items():
        factor = weights[language] / least
        total.update({word: round(factor * count) for word, count in found.words.items()})
    return total


@dataclasses.dataclass(frozen=True)
class Characters:
    """The characters of texts, the most frequent first."""

    kept: tuple[str, ...]  # those that a vocabulary has
    dropped: tuple[str, ...]  # the rarer others
    share: float  # the fraction of all characters that `kept` make up


def choose_characters(words: Mapping[str, int], coverage: float) -> Characters:
    """Chooses the fewest characters that make up a share of all characters of some words.

    This is the character coverage of SentencePiece (Kudo & Richardson 2018). Among equally frequent
    characters, those that come first in Unicode come first. `words` says how often each occurs.
    """
    if not 0 < coverage <= 1:
        raise UserError(f"character_coverage is {coverage:g}; it must be above 0 and at most 1")
    counts: collections.Counter = collections.Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    total, covered, number = counts.total(), 0, 0
    while number < len(ordered) and covered < coverage * total:
        covered += counts[ordered[number]]
        number += 1
    share = covered / total if total else 1.0
    return Characters(tuple(ordered[:number]), tuple(ordered[number:]), share)


def find_lone_characters(characters: Sequence[str]) -> set[str]:
    """Finds what BERT always makes words of their own: punctuation and Chinese characters."""
    return {each for each in characters if len(split_words(f"a{each}a")) == 3}
