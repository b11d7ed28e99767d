"""Byte-level byte-pair encoding (Radford et al. 2019, §2.2), which CLIP and RoBERTa share."""

import abc
import functools
import math
import sys
import unicodedata
from collections.abc import Mapping, Sequence

from big_align.data.text.framed import Frame, FramedTokenizer

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"


def byte_letters() -> dict[int, str]:
    """Gives every byte a letter to write it with: its own, or the next one from 256 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + number) for number, byte in enumerate(hidden)}


def spell_piece(piece: str) -> str:
    """Returns the text of a piece whose letters stand for bytes; a mark such as </w> stays."""
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    word, mark = (piece[:-4], piece[-4:]) if piece.endswith("</w>") else (piece, "")
    if not all(letter in bytes_of for letter in word):
        return piece
    return bytes(bytes_of[letter] for letter in word).decode("utf-8", "replace") + mark


def merge_pieces(pieces: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merges the pieces of a word, the pair with the lowest rank first, until none has a rank."""
    while len(pieces) > 1:
        pairs = zip(pieces, pieces[1:], strict=False)
        best = min(pairs, key=lambda pair: ranks.get(pair, math.inf))
        if best not in ranks:
            break
        pieces = _join_pair(pieces, best)
    return pieces


def _join_pair(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


@functools.cache
def character_class(*categories: str) -> str:
    """Writes categories of Unicode, by how their names begin, as the inside of a character class.

    The standard library's patterns have no classes for Unicode's letters ("L") and numbers.
    """
    ranges: list[list[str]] = []
    for character in map(chr, range(sys.maxunicode + 1)):
        if not unicodedata.category(character).startswith(categories):
            continue
        if ranges and ord(ranges[-1][1]) + 1 == ord(character):
            ranges[-1][1] = character
        else:
            ranges.append([character, character])
    return "".join(f"{first}-{last}" for first, last in ranges)


class BytePairTokenizer(FramedTokenizer):
    """Splits a text into words, and each into pieces: start, pieces, end, then padding.

    The first pairs of pieces are merged first. The mark is the ending of the last piece of a word.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        pairs: Sequence[tuple[str, str]],
        length: int,
        frame: Frame,
        shorten: str,
        mark: str = "",
    ):
        super().__init__(length, frame, shorten)
        self._ids, self._mark = ids, mark
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._letters = byte_letters()
        self._encode = functools.lru_cache(maxsize=2**17)(self._encode_word)
        self.vocab_size = len(ids)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[id for word in self._split(text) for id in self._encode(word)] for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each id; a mark such as </w> ends a word."""
        pieces = list(self._ids)
        return [spell_piece(pieces[id]) for id in ids]

    @abc.abstractmethod
    def _split(self, text: str) -> list[str]:
        """Returns the words of a text."""

    def _encode_word(self, word: str) -> tuple[int, ...]:
        """Merges the bytes of a word, the pair with the lowest rank first."""
        pieces = [self._letters[byte] for byte in word.encode("utf-8")]
        pieces[-1] += self._mark
        return tuple(map(self._find_id, merge_pieces(pieces, self._ranks)))

    def _find_id(self, piece: str) -> int:
        return self._ids[piece]
