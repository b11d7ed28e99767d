"""What a word is: one definition for vocabularies, tokenizers, tags, names and rules.

White space and the zero-width space part words. A word is a run of letters, of the marks on them
(Indian vowels are marks) and of digits. Han and kana are written without spaces: each character is
a word. Everything else is a sign, or no text at all. Letters that can be written in several ways
(é as one character or two, as in names of files on a Mac) are the same letters.
"""

import re
import unicodedata
from collections.abc import Callable

ZERO_WIDTH_SPACE = "\u200b"
"""Parts words of Khmer and Thai for programs; in Unicode it is a format, and no white space."""
NO_TEXT = ("Cc", "Cf", "Cs", "Co")
"""Categories of characters that are no text: controls, formats such as a soft hyphen, private."""
UNSPACED = ((0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x30FF), (0x31F0, 0x31FF),
            (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip
"""Han and kana."""
HYPHENS = "-\u2010"
# Hyphens between parts of words; a pattern that begins with the sign is found faster.
_INSIDE = re.compile(r"-(?<=[^\s-]-)(?=[^\s-])")


class CharacterMap(dict):
    """A table for `str.translate`, which a function from character to text fills on demand."""

    def __init__(self, rule: Callable[[str], str]):
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        found = self[code] = self._rule(chr(code))
        return found


def is_space(char: str) -> bool:
    """Returns whether a character is white space of any kind, or the zero-width space."""
    return char.isspace() or char == ZERO_WIDTH_SPACE


def split_at_spaces(text: str) -> list[str]:
    """Returns what stands between white space."""
    return text.replace(ZERO_WIDTH_SPACE, " ").split()


def compose(text: str) -> str:
    """Returns a text in one form: its letters composed (NFC), with single spaces."""
    return " ".join(split_at_spaces(unicodedata.normalize("NFC", text)))


def write_name(name: str) -> str:
    """Returns a name as readers and text encoders get it: composed, spaces for underscores."""
    return compose(name.replace("_", " "))


def fold_text(text: str) -> str:
    """Returns the form that is the same for texts that count as the same: NFKC, without case."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def spell(char: str) -> str:
    """Returns what a character is to words.

    That is itself, if it is a part of words; with spaces around it, if it is a word; "", if it is
    no text or only says how the one before it looks; and a space, if it parts words.
    """
    code, kind = ord(char), unicodedata.category(char)
    if is_space(char):
        return " "
    is_variant = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or code == 0x20E3
    if kind in NO_TEXT or is_variant:
        return ""
    if kind[0] not in "LMN":
        return " "
    return f" {char} " if any(first <= code <= last for first, last in UNSPACED) else char


def _spell_with_signs(char: str) -> str:
    """Returns what `spell` returns, and signs with spaces around them."""
    spelled = spell(char)
    return spelled if spelled != " " or is_space(char) else f" {char} "


def is_sign(word: str) -> bool:
    """Returns whether a word of `split_words` is a sign."""
    return len(word) == 1 and spell(word) == " "


def _spell_with_hyphens(char: str) -> str:
    if char in HYPHENS:
        return "-"
    return " " if char == "_" else _spell_with_signs(char)


_SIGNS, _HYPHENS = CharacterMap(_spell_with_signs), CharacterMap(_spell_with_hyphens)


def split_signs(text: str) -> list[str]:
    """Splits a text into words without case and all its signs, each by itself."""
    return fold_text(text).translate(_SIGNS).split()


def split_words(text: str) -> list[str]:
    """Splits a text into words without case, and the signs between them.

    Underscores, and hyphens inside words, part them as spaces do.
    """
    parted = fold_text(text).translate(_HYPHENS)
    return _INSIDE.sub(" ", parted).replace("-", " - ").split()
