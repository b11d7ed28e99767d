"""The words of an English text, and which of them matter most: nouns, then adjectives, then verbs.

The order is that of CLIPA's syntax masking (Li, Wang & Xie 2023).
"""

import functools
import re
from collections.abc import Callable, Sequence

from big_align.core.errors import UserError

# Each word keeps the space before it, by which some tokenizers tell it from the rest of a word.
WORDS = re.compile(r"\s*(?:&#?\w+;|['’]\w+|\w+(?:-\w+)*|[^\w\s]+)|\s+")
RANKS = {"NN": 0, "JJ": 1, "VB": 2}
"""By how tags of the Penn Treebank begin."""
OTHER = 3


def split(text: str) -> list[str]:
    """Splits a text into words, endings such as 's, and runs of signs."""
    return WORDS.findall(text)


@functools.cache
def load() -> Callable[[Sequence[str]], list[int]]:
    """Loads the tagger; returns a function that ranks the words of a text, the best with 0.

    Raises:
      UserError: the package that has it is not installed.
    """
    try:
        from textblob.en import parser
    except ImportError as error:
        raise UserError(
            "shorten = 'syntax' needs the package textblob, which tags words: pip install "
            "'big_align[syntax]'"
        ) from error
    parser.find_tags(["a"])  # reads its lexicon before threads do

    def rank(words: Sequence[str]) -> list[int]:
        tagged = parser.find_tags([word.strip() for word in words])
        return [RANKS.get(tag[:2], OTHER) if word[:1].isalnum() else OTHER for word, tag in tagged]

    return rank
