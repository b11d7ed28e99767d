"""How often texts have each word and each character, language by language."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from big_align.core.errors import UserError
from big_align.data import tensorflow_on_cpu
from big_align.data.examples import language_of
from big_align.data.text.clean_texts import clean_for_bert
from big_align.data.text.temperature import share_by_temperature

BATCH = 4096  # texts split into words by one call
LONGEST_WORD = 100
"""Bytes of a word above which BERT's tokenizer treats it as unknown, whatever the vocabulary."""


@dataclasses.dataclass
class TextCounts:
    """How many texts of a language there are, and how often they have each word."""

    texts: int = 0
    words: collections.Counter = dataclasses.field(default_factory=collections.Counter)


def count_texts(texts: Iterable[str], lowercase: bool = True) -> dict[str, TextCounts]:
    """Counts words as BERT's basic tokenizer splits them, and therefore as WordPieceTokenizer does.

    The counts are by language (`examples.Caption`); "" has the texts without one.
    """
    split = _make_splitter(lowercase)
    counts: dict[str, TextCounts] = {}
    batches: dict[str, list[str]] = {}

    def count(language: str) -> None:
        found, batch = counts.setdefault(language, TextCounts()), batches[language]
        found.texts += len(batch)
        found.words.update(split(batch).flat_values.numpy().tolist())
        batch.clear()

    for text in texts:
        language = language_of(text)
        batch = batches.setdefault(language, [])
        batch.append(str(text))
        if len(batch) == BATCH:
            count(language)
    for language, batch in batches.items():
        if batch:
            count(language)
    for found in counts.values():
        found.words = collections.Counter({word.decode(): n for word, n in found.words.items()})
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
    if not characters:
        return set()
    framed = [f"a{character}a" for character in characters]
    parts = _make_splitter(lowercase=False)(framed).row_lengths().numpy().tolist()
    return {c for c, count in zip(characters, parts, strict=True) if count == 3}


def _make_splitter(lowercase: bool) -> Any:
    """Makes a function that splits texts into the words of each, a ragged tensor."""
    tf = tensorflow_on_cpu.load()
    from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer

    splitter = BasicTokenizer(lower_case=False)

    def split(texts: Sequence[str]) -> Any:
        cleaned = [clean_for_bert(text, lowercase) for text in texts]
        with tf.device("CPU"):
            return splitter.tokenize(tf.constant(cleaned, tf.string))

    return split
