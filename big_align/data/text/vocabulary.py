"""A WordPiece vocabulary learned from the captions of a source."""

import collections
import dataclasses
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from absl import logging

from big_align.data import files, tensorflow_on_cpu
from big_align.data.text import tokenizers
from big_align.data.text.word_counts import (
    LONGEST_WORD,
    Characters,
    TextCounts,
    choose_characters,
    count_texts,
    find_lone_characters,
    weigh_languages,
)
from big_align.errors import UserError

COVERAGE = 0.9999
"""The share of all characters that a vocabulary spells, where nothing else is said."""
MEASURED = 4096  # words made pieces by one call


def count_words(captions: Iterable[str], lowercase: bool = True) -> collections.Counter:
    """Counts words as BERT's basic tokenizer splits them, so as WordPieceTokenizer does."""
    return weigh_languages(count_texts(captions, lowercase))


@dataclasses.dataclass(frozen=True)
class Learned:
    """A vocabulary that was learned.

    Attributes:
      pieces: the special tokens, single characters, then longer pieces.
      characters: which single characters there are, and which are not.
      long_words: how many words, each counted as often as it occurs, have more than `LONGEST_WORD`
        bytes: these stay unknown.
    """

    pieces: list[str]
    characters: Characters
    long_words: int


def learn_vocabulary(
    counts: Mapping[str, int], size: int, coverage: float = COVERAGE
) -> Learned:
    """Learns the pieces that cover words best (Schuster & Nakajima 2012, tensorflow-text).

    Every character that is kept is a piece, at the beginning of a word and inside of it; so words
    of these characters are never unknown. Punctuation and Chinese characters are words of their
    own, so they take one piece each.

    Args:
      counts: how often each word occurs.
      size: the largest number of pieces, special tokens among them.
      coverage: the share of all characters that can be spelled (`choose_characters`).

    Returns:
      The vocabulary; a text with few words gives fewer pieces than `size`.

    Raises:
      UserError: no words, a value out of range, or a size that does not hold the special tokens and
        the characters.
    """
    special = list(tokenizers.SPECIAL_TOKENS)
    if size <= len(special):
        raise UserError(f"size is {size}; it must be above the {len(special)} special tokens")
    if not counts:
        raise UserError("there are no words to learn from")
    words = {word: n for word, n in counts.items() if len(word.encode()) <= LONGEST_WORD}
    long_words = sum(counts.values()) - sum(words.values())
    characters = choose_characters(words, coverage)
    lone = find_lone_characters(characters.kept)
    single = sorted(characters.kept)
    single += [f"##{character}" for character in single if character not in lone]
    if (needed := len(special) + len(single)) > size:
        raise UserError(
            f"size is {size}, and the captions have {len(characters.kept)} different characters "
            f"within {100 * coverage:g}% of all: these need a size of {needed} with special "
            "tokens; raise it, or lower character_coverage"
        )
    kept = set(characters.kept)
    words = {word: count for word, count in words.items() if kept.issuperset(word)}
    longer = _learn_pieces(words, size + len(lone), len(kept)) if words else []
    pieces = (special + single + longer)[:size]
    return Learned(pieces, characters, long_words)


def _learn_pieces(words: Mapping[str, int], size: int, characters: int) -> list[str]:
    """Learns the pieces of more than one character, the most frequent first."""
    tensorflow_on_cpu.load()
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    ordered = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    logging.info("learning from %d words, %d different", sum(words.values()), len(words))
    special = list(tokenizers.SPECIAL_TOKENS)
    pieces = learner.learn(
        ordered,
        vocab_size=size,
        reserved_tokens=special,
        lower_thresh=2,  # the learner's own 10 leaves small sets with a fraction of the pieces
        max_unique_chars=characters,  # its own 1000 drops most of Chinese
        slack_ratio=0.02,
    )
    return [p for p in pieces if p not in special and len(p.removeprefix("##")) > 1]


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How a vocabulary spells the texts of a language.

    Attributes:
      texts: how many there are.
      length: pieces of a text on average, without the special ones.
      unknown: the share of [UNK] among the pieces.
    """

    texts: int
    length: float
    unknown: float


def measure_spelling(
    vocabulary: str, counts: Mapping[str, TextCounts], lowercase: bool = True
) -> dict[str, Spelling]:
    """Measures how a vocabulary spells the texts that were counted, language by language.

    Args:
      vocabulary: the file.
      counts: of each language, as `count_texts` returns them.
      lowercase: as they were counted.
    """
    tokenizer = tokenizers.WordPieceTokenizer(vocabulary, LONGEST_WORD + 2, lowercase)
    found = {}
    for language, counted in counts.items():
        pieces = unknown = 0
        words = list(counted.words)
        for first in range(0, len(words), MEASURED):
            some = words[first : first + MEASURED]
            times = np.array([counted.words[word] for word in some], np.int64)
            text, text_mask = tokenizer(some)
            pieces += int(times @ (text_mask.sum(axis=1) - 2))  # without [CLS] and [SEP]
            unknown += int(times @ ((text == tokenizer.unknown_id) & text_mask).sum(axis=1))
        length = pieces / max(counted.texts, 1)
        found[language] = Spelling(counted.texts, length, unknown / max(pieces, 1))
    return found


def write_vocabulary(pieces: list[str], path: str) -> None:
    """Writes one piece a line, beside the place and then renamed: never half a vocabulary."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, encoding="utf-8", delete=False) as file:
        file.write("\n".join(pieces) + "\n")
    os.replace(file.name, path)


def read_lines(paths: str) -> Iterator[str]:
    """Yields the lines of text files (globs, braces, comma lists) that are not empty.

    Raises:
      ValueError: nothing is found.
    """
    for path in files.expand_paths(paths):
        with files.files_of(path).open(path) as file:
            data = file.read()
        yield from filter(None, map(str.strip, data.decode("utf-8", "replace").splitlines()))
