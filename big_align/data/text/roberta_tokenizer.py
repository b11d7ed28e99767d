"""RoBERTa's byte-level byte-pair encoding (Liu et al. 2019, §4.4) in plain Python."""

import functools
import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int32

from big_align.data.text.byte_pairs import (
    CONTRACTIONS,
    byte_letters,
    character_class,
    merge_pieces,
    spell_piece,
)
from big_align.data.text.piece_files import read_ids, read_merges

START, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
PUBLISHED = "RoBERTa is published with vocab.json and merges.txt"

# Unicode's white space, to which `\s` adds four control characters.
SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class RobertaTokenizer:
    """The tokenizer of the published RoBERTa models: <s>, pieces, </s>, then <pad>.

    Texts are taken as they are: case, accents and repeated spaces count, and a word has other ids
    at the beginning of a text than after a space. A special token that is spelled out in a text is
    plain text, so that it cannot end the text. A byte without a piece of its own becomes <unk>; the
    published vocabulary has them all.

    Args:
      vocabulary: the published `vocab.json`, or transformers' `tokenizer.json`.
      merges: the published `merges.txt`, or the same `tokenizer.json`.
      length: ids per text; a longer one keeps its first pieces and </s>.

    Raises:
      ValueError: a file is missing or is not what it should be, a merge makes a piece that the
        vocabulary lacks, or the length is below 3.
    """

    def __init__(self, vocabulary: str, merges: str, length: int):
        if length < 3:
            raise ValueError(f"length is {length}; it must be at least 3")
        self._ids = read_vocabulary(vocabulary)
        pairs = list_merges(merges)
        for number, pair in enumerate(pairs, start=1):
            if "".join(pair) not in self._ids:
                raise ValueError(
                    f"merges: {merges!r}: merge {number}, {' '.join(pair)!r}, makes a piece that "
                    f"{vocabulary!r} lacks; both files must be of one model"
                )
        self.unknown_id = self._ids[UNKNOWN]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._letters = byte_letters()
        self._ascii_words = _words("A-Za-z", "0-9")  # over twice as fast
        self._any_words = _words(character_class("L"), character_class("N"))
        self._encode = functools.lru_cache(maxsize=2**17)(self._encode_word)
        self.length = length
        self.vocab_size = len(self._ids)
        content = json.dumps(["roberta", length, sorted(self._ids.items()), pairs])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()

    def __call__(
        self, texts: Sequence[str]
    ) -> tuple[Int32[np.ndarray, "n l"], Bool[np.ndarray, "n l"]]:
        """Returns ids and which of them are real."""
        start, pad, end = (self._ids[token] for token in (START, PAD, END))
        text = np.full((len(texts), self.length), pad, np.int32)
        text_mask = np.zeros(text.shape, bool)
        for row, caption in enumerate(texts):
            ids = [start]
            pattern = self._ascii_words if caption.isascii() else self._any_words
            for word in pattern.findall(caption):
                ids += self._encode(word)
            ids = [*ids[: self.length - 1], end]
            text[row, : len(ids)] = ids
            text_mask[row, : len(ids)] = True
        return text, text_mask

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each id."""
        pieces = {id: piece for piece, id in self._ids.items()}
        return [spell_piece(pieces[id]) for id in ids]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        pieces = merge_pieces([self._letters[byte] for byte in word.encode("utf-8")], self._ranks)
        return tuple(self._ids.get(piece, self.unknown_id) for piece in pieces)


def _words(letters: str, numbers: str) -> re.Pattern[str]:
    """Builds GPT-2's pattern (Radford et al. 2019) from the insides of two character classes.

    A text is split into contractions and runs of letters, of numbers or of other signs. Each run
    includes one space before it; if there are more, the others are a run of their own.
    """
    return re.compile(
        rf"{CONTRACTIONS}| ?[{letters}]+| ?[{numbers}]+| ?[^{SPACES}{letters}{numbers}]+"
        rf"|[{SPACES}]+(?![^{SPACES}])|[{SPACES}]+"
    )


def read_vocabulary(path: str) -> dict[str, int]:
    """Reads RoBERTa's vocabulary: ids by piece, special tokens included.

    Args:
      path: a `vocab.json`, which gives every piece its id, or a `tokenizer.json` of transformers.

    Raises:
      ValueError: `read_ids` refuses it.
    """
    return read_ids(path, (START, PAD, END, UNKNOWN), PUBLISHED)


def list_merges(path: str) -> list[tuple[str, str]]:
    """Reads RoBERTa's merges.

    Args:
      path: a `merges.txt` or a `tokenizer.json` of transformers.

    Returns:
      Pairs of pieces; earlier ones are merged first.

    Raises:
      ValueError: the file is missing or is not such a list.
    """
    pairs = [tuple(line.split(" ")) for line in read_merges(path, PUBLISHED)]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2 or not all(pair):
            raise ValueError(
                f"merges: {path!r}: merge {number} is {' '.join(pair)!r}; it must be two pieces "
                "with a space between them"
            )
    return pairs
