"""Texts as they are cleaned before they are split: HTML's entities, and what BERT drops."""

import html
import re
import unicodedata
from html.entities import html5

from big_align.core.words import NO_TEXT, CharacterMap, is_space

# A name is only complete with its semicolon, or where no letter, digit or = follows. So it is in an
# attribute (HTML Standard, 13.2.5.73), as alt-texts are: "rock&reggae" has no sign in it.
REFERENCE = re.compile(r"&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|([a-zA-Z][a-zA-Z0-9]*(?:;|(?![\w=]))))")


def unescape(text: str) -> str:
    """Returns a text with the characters that entities such as `&amp;` and `&#39;` stand for."""
    return REFERENCE.sub(_replace, text) if "&" in text else text


def _replace(found: re.Match) -> str:
    return html.unescape(found[0]) if found[1] is None else html5.get(found[1], found[0])


def _keep(char: str) -> str:
    if is_space(char):
        return " "
    return "" if unicodedata.category(char) in NO_TEXT or char == "\ufffd" else char


def _keep_uncased(char: str) -> str:
    # a capital sigma has no other form at the end of a word
    return "" if unicodedata.category(char) == "Mn" else _keep(char).replace("Σ", "σ")


_CASED, _UNCASED = CharacterMap(_keep), CharacterMap(_keep_uncased)


def clean_for_bert(text: str, lowercase: bool) -> str:
    """Returns a text without what is no text and, as uncased models had it, case and accents.

    For the latter it is decomposed (NFD) and loses its marks, and each character becomes lower case
    by itself. Else it is composed (NFC), the form of the encyclopedia that cased models were
    trained on. White space of any kind becomes spaces. Published tokenizers delete some of it
    instead (zero-width spaces, vertical tabs), which joins the words beside it.
    """
    if text.isascii() and text.isprintable():
        return text.lower() if lowercase else text
    if lowercase:
        return unicodedata.normalize("NFD", text).translate(_UNCASED).lower()
    return unicodedata.normalize("NFC", text.translate(_CASED))
