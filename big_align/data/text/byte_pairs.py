"""Byte-level byte-pair encoding (Radford et al. 2019, §2.2), which CLIP and RoBERTa share."""

import functools
import math
import sys
import unicodedata
from collections.abc import Mapping

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
    """Joins every occurrence of a pair, from the left."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


@functools.cache
def character_class(*categories: str) -> str:
    """Writes some of Unicode's categories as the inside of a character class.

    The standard library's patterns have no classes for Unicode's letters and numbers.

    Args:
      categories: beginnings of their names, such as "L" for every kind of letter.
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
