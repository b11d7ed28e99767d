"""A WordPiece vocabulary learned from the captions of a source."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from big_align.core.errors import UserError
from big_align.core.progress import make_bar
from big_align.core.whole_files import write_whole
from big_align.data import files, listing
from big_align.data.examples import strip
from big_align.data.text import tokenizers, word_counts
from big_align.data.text.wordpieces import LONGEST_WORD, MARK, cut_word

COVERAGE = 0.9999
"""The share of all characters that a vocabulary spells by default."""
# The other numbers are those of tensorflow-text's learner.
LEAST = 2  # times that a piece occurs; the learner's 10 leaves small sets with few pieces
LONGEST_PIECE = 50  # characters, also of words that are learned from
ITERATIONS = 4
MOST_WORDS = 5_000_000  # the most frequent words are learned from
SLACK = 0.02  # the share of pieces that may be made in excess before the rarest are cut
MEASURED = 4096  # words tokenized by one call


@dataclasses.dataclass(frozen=True)
class Learned:
    """A vocabulary that was learned."""

    pieces: list[str]  # the special tokens, single characters, then longer pieces
    characters: word_counts.Characters  # which single characters there are, and which are missing
    long_words: int  # occurrences of words that stay unknown, with more than `LONGEST_WORD` bytes


def check_settings(size: int, coverage: float) -> None:
    """Raises UserError if no words have a vocabulary of this size or character coverage."""
    special = len(tokenizers.SPECIAL_TOKENS)
    if size <= special:
        raise UserError(f"size is {size}; it must be above the {special} special tokens")
    word_counts.choose_characters({}, coverage)


def learn_vocabulary(counts: Mapping[str, int], size: int, coverage: float = COVERAGE) -> Learned:
    """Learns the pieces that cover words best (Schuster & Nakajima 2012) as tensorflow-text does.

    Every character that is kept (`choose_characters`) is a piece, at the beginning of a word and
    inside it; so words of these characters are never unknown. Punctuation and Chinese characters
    are words of their own, so they take one piece each. The size, which few words do not reach,
    includes special tokens.
    """
    check_settings(size, coverage)
    special = list(tokenizers.SPECIAL_TOKENS)
    if not counts:
        raise UserError("there are no words to learn from")
    words = {word: n for word, n in counts.items() if len(word.encode()) <= LONGEST_WORD}
    long_words = sum(counts.values()) - sum(words.values())
    characters = word_counts.choose_characters(words, coverage)
    lone = word_counts.find_lone_characters(characters.kept)
    single = sorted(characters.kept)
    single += [f"{MARK}{character}" for character in single if character not in lone]
    if (needed := len(special) + len(single)) > size:
        raise UserError(
            f"size is {size}, and the captions have {len(characters.kept)} different characters "
            f"within {100 * coverage:g}% of all: these need a size of {needed} with special "
            "tokens; raise it, or lower character_coverage"
        )
    kept = set(characters.kept)
    words = {word: count for word, count in words.items() if kept.issuperset(word)}
    # pieces that continue a word with a lone character are counted, and not among the single ones
    longer = _learn_pieces(words, size + len(lone)) if words else []
    pieces = (special + single + longer)[:size]
    return Learned(pieces, characters, long_words)


def _learn_pieces(words: Mapping[str, int], size: int) -> list[str]:
    """Learns pieces of several characters, the most frequent first.

    With the special tokens, and with two for each character, they are at least `size`, if there are
    that many. All pieces that occur as often as a threshold are taken. This searches for a
    threshold that gives no fewer than wanted and at most `SLACK` more, or else the largest that
    gives enough.
    """
    ordered = [(word, count) for word, count in words.items() if len(word) <= LONGEST_PIECE]
    ordered.sort(key=lambda item: (-item[1], item[0]))
    del ordered[MOST_WORDS:]
    logging.info("learning from %d different words of %d", len(ordered), len(words))
    characters = set().union(*(word for word, _ in ordered))
    others = len(tokenizers.SPECIAL_TOKENS) + 2 * len(characters)
    low, high = LEAST, _bound_threshold(ordered, size - others)
    best: list[str] | None = None
    with make_bar(total=(high - low).bit_length() + 1, desc="learning", leave=False) as bar:
        while low <= high:
            middle = low if best is None else (low + high) // 2  # are there enough at all?
            pieces = list_frequent(ordered, middle)
            bar.update()
            enough = others + len(pieces) >= size
            best = pieces if best is None or enough else best
            if others + len(best) <= (1 + SLACK) * size:
                break
            low, high = (middle + 1, high) if enough else (low, middle - 1)
    return best or []


def list_frequent(words: Sequence[tuple[str, int]], threshold: int) -> list[str]:
    """Lists the pieces of several characters that reach a threshold, the most frequent first.

    A piece counts where it is the rest of a word, from a place on where pieces can be cut: in the
    first iteration any place, then those where the pieces of the iteration before begin. This is
    what tensorflow-text's learner computes, which counts all parts of words and then subtracts
    each count from those of the part's own beginnings.
    """
    single = {mark + character for word, _ in words for character in word for mark in ("", MARK)}
    pieces, counts = single, collections.Counter[str]()
    for _ in range(ITERATIONS):
        counts.clear()
        for word, count in words:
            start = 0
            for piece in cut_word(word, pieces, LONGEST_PIECE):
                counts[MARK + word[start:] if start else word] += count
                start += len(piece) - (len(MARK) if start else 0)
        frequent = {piece for piece, count in counts.items() if count >= threshold}
        pieces = single | frequent
    return sorted(frequent - single, key=lambda piece: (-counts[piece], piece))


def _bound_threshold(words: Sequence[tuple[str, int]], count: int) -> int:
    """Bounds the threshold for this many pieces of several characters, which shortens the search.

    A part of a word counts at most as often as it occurs, so no more parts reach a threshold than
    occur that often.
    """
    number = max(count, 1)
    counts: collections.Counter = collections.Counter()
    for word, times in words:
        for start in range(len(word)):
            mark = MARK if start else ""
            for end in range(start + 2, len(word) + 1):
                counts[mark + word[start:end]] += times
    occurring = np.fromiter(counts.values(), np.int64, len(counts))
    if len(occurring) < number:
        return LEAST
    return max(LEAST, int(np.partition(occurring, -number)[-number]))


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How a vocabulary spells the texts of a language."""

    texts: int
    length: float  # pieces of a text on average, without the special ones
    unknown: float  # the share of [UNK] among the pieces


def measure_spelling(
    vocabulary: str, counts: Mapping[str, word_counts.TextCounts], lowercase: bool = True
) -> dict[str, Spelling]:
    """Measures how a vocabulary in a file spells the texts that `count_texts` counted."""
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
    """Writes one piece per line, never half a vocabulary."""
    write_whole(path, "".join(f"{piece}\n" for piece in pieces).encode())


def read_lines(paths: str) -> Iterator[str]:
    """Yields the lines of text files (globs, braces, comma lists) that are not empty."""
    for path in listing.expand_paths(paths):
        yield from read_file(path)


def read_file(path: str) -> Iterator[str]:
    """Yields the lines of a text file that are not empty; raises UserError if it is no text."""
    yield from filter(None, map(strip, files.split_lines(files.read_text(path))))
