"""Texts as BERT's tokenizer cleans them before it splits them into words."""

import unicodedata

DROPPED = {"Cc", "Cf", "Co"}
"""Categories of characters that are no text: controls, formats such as a soft hyphen, private."""

SPACES = "\t\n\r"
"""Controls that are spaces."""


def clean_for_bert(text: str, lowercase: bool) -> str:
    """Returns a text without what is no text and, as uncased models had it, case and accents.

    For the latter it is decomposed (NFD) and loses its marks, and each character becomes lower case
    by itself: a capital sigma has no other form at the end of a word.

    Args:
      text: any text.
      lowercase: whether case and accents are dropped.
    """
    if text.isascii() and text.isprintable():
        return text.lower() if lowercase else text
    dropped = DROPPED | {"Mn"} if lowercase else DROPPED
    letters = unicodedata.normalize("NFD", text) if lowercase else text
    known = (x for x in letters if x in SPACES or unicodedata.category(x) not in dropped)
    kept = "".join(known).replace("\ufffd", "")
    return kept.replace("Σ", "σ").lower() if lowercase else kept
