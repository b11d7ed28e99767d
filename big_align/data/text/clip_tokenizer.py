"""CLIP's byte-pair encoding (Radford et al. 2021, §2.4) in plain Python."""

import re
import unicodedata
from collections.abc import Sequence

from big_align.core.digests import fingerprint
from big_align.data.text.byte_pairs import (
    CONTRACTIONS,
    BytePairTokenizer,
    byte_letters,
    character_class,
)
from big_align.data.text.clean_texts import unescape
from big_align.data.text.framed import Frame
from big_align.data.text.piece_files import check_ids, read_ids, read_merges

NUM_MERGES = 49152 - 256 - 2  # the published file holds more lines than the model has ids
START, END = "<|startoftext|>", "<|endoftext|>"
PUBLISHED = "CLIP publishes bpe_simple_vocab_16e6.txt.gz"

# CLIP splits clean text into contractions, letters, single digits, and other signs. A special token
# that is spelled out in a caption is plain text, so that it cannot end the caption.
ASCII_WORDS = re.compile(rf"{CONTRACTIONS}|[a-z]+|[0-9]|[^\sa-z0-9]+")  # five times faster

# Control characters that CLIP's cleaning (ftfy) leaves out, also those that begin a file, or that
# color the output of a terminal.
CONTROLS = (*range(0x09), 0x0B, *range(0x0E, 0x20), 0x7F, *range(0x206A, 0x2070), 0xFEFF,
            *range(0xFFF9, 0xFFFD))  # fmt: skip
COLORING = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# Letters that are two in one (of Dutch, Serbo-Croatian and typography), and full and half widths.
COMPOSED = (*range(0x132, 0x134), *range(0x1C4, 0x1CD), *range(0x1F1, 0x1F4),
            *range(0xFB00, 0xFB05), 0xFB06, *range(0xFF01, 0xFFF0))  # fmt: skip
QUOTES = dict.fromkeys("\u2018\u2019\u201a\u201b\u02bc", "'")
QUOTES |= dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
# Control characters that are signs of Windows' code page, read as Latin-1.
WINDOWS = {code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)}

PLAIN = {
    **{ord(quote): plain for quote, plain in QUOTES.items()},
    **{code: unicodedata.normalize("NFKC", chr(code)) for code in COMPOSED},
    **{0x149: "'n", 0xFB05: "\u017ft"},
    **{code: QUOTES.get(sign, sign) for code, sign in WINDOWS.items() if sign},
    **dict.fromkeys(CONTROLS),
}
"""What CLIP's cleaning makes plain."""


class ClipTokenizer(BytePairTokenizer):
    """The tokenizer of the published CLIP models: start, pieces, end, then zeros.

    Texts are unescaped from HTML, made plain (curly quotes, ligatures, full-width letters, control
    characters), composed (NFC), stripped of repeated spaces and lowercased. This is the published
    cleaning, except for the repair of wrongly decoded text, which CLIP leaves to a package whose
    results change with its version.

    Args:
      merges: the published `bpe_simple_vocab_16e6.txt.gz`, or transformers' `merges.txt` or
        `tokenizer.json`.
      length: ids per text; a longer one keeps its first pieces and the end.
      shorten: what training keeps of a longer text: "truncate" its first ids, "random" ones, a
        "block" of them, or by "syntax" those of nouns first, then of adjectives and verbs.

    Raises:
      ValueError: the file is missing or is not a list of merges, or the length is below 3.
    """

    def __init__(self, merges: str, length: int = 77, shorten: str = "truncate"):
        pairs = list_merges(merges)
        pieces = list_pieces(pairs)
        ids = {piece: number for number, piece in enumerate(pieces)}
        frame = Frame((ids[START],), (ids[END],), 0)
        super().__init__(ids, pairs, length, frame, shorten, "</w>")
        self._any_words = _any_words()
        self.fingerprint = fingerprint(f"clip {length} {pieces}")

    def _split(self, text: str) -> list[str]:
        text = clean_text(text)
        return (ASCII_WORDS if text.isascii() else self._any_words).findall(text)


def clean_text(text: str) -> str:
    """Brings a caption into the form that the merges were learned on."""
    if "&" in text:
        if "<" not in text:  # ftfy takes a text with a tag for HTML that is meant to be so
            text = unescape(text)
        text = unescape(unescape(text))
    if not text.isascii() or not text.isprintable():
        text = COLORING.sub("", text).translate(PLAIN)
        text = unicodedata.normalize("NFC", text)
    return " ".join(text.split()).lower()


def list_merges(path: str, vocabulary: str | None = None) -> list[tuple[str, str]]:
    """Reads CLIP's merges, pairs of pieces, of which earlier ones are merged first.

    They are the published gzipped text, the same as plain text (`merges.txt`), or a
    `tokenizer.json` of transformers. The ids of this one, or of a given vocabulary, are compared
    with CLIP's, which follow from the merges. ValueError says what is wrong.
    """
    pairs = [tuple(line.split()) for line in read_merges(path, PUBLISHED)[:NUM_MERGES]]
    if len(pairs) != NUM_MERGES or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"merges: {path!r} does not hold {NUM_MERGES} pairs of pieces")
    pieces = [(piece, number) for number, piece in enumerate(list_pieces(pairs))]
    ids = check_ids(pieces, f"merges: {path!r}")
    vocabulary = path if path.endswith(".json") else vocabulary
    if vocabulary:
        for piece, number in read_ids(vocabulary, (START, END), PUBLISHED).items():
            if ids.get(piece) != number:
                raise ValueError(
                    f"vocabulary: {vocabulary!r} gives {piece!r} the id {number}; by the merges it "
                    f"is {ids.get(piece, 'no piece')}, as in CLIP"
                )
    return pairs


def list_pieces(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Lists every piece in the order of its id: bytes, bytes that end a word, merges, specials."""
    letters = byte_letters().values()
    # ids count the bytes in the order of their letters' code points, then the merges
    singles = sorted(letters, key=lambda letter: (ord(letter) > 255, letter))
    pieces = singles + [letter + "</w>" for letter in singles]
    return [*pieces, *(first + second for first, second in pairs), START, END]


def _any_words() -> re.Pattern[str]:
    r"""Builds CLIP's pattern for any language.

    `\w` matches letters and numbers, but `\d` lacks some (fractions, Roman numerals).
    """
    numbers = character_class("Nl", "No")
    return re.compile(rf"{CONTRACTIONS}|[^\W\d_{numbers}]+|[\d{numbers}]|(?:[^\s\w]|_)+")
