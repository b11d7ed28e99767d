"""BERT's words and their pieces (Devlin et al. 2019), in plain Python and by tensorflow-text."""

import functools
import importlib.util
import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

from big_align.core.errors import tell_in_a_line
from big_align.data import tensorflow_on_cpu
from big_align.data.text.byte_pairs import character_class

MARK = "##"
"""Begins a piece that continues a word."""
LONGEST_WORD = 100
"""Bytes of a word above which BERT's tokenizer treats it as unknown, whatever the vocabulary."""

IdRows = tuple[Int32[np.ndarray, " i"], Int[np.ndarray, " s"]]
"""The ids of texts in a row, and where each text begins and the last one ends."""

HAN = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
ESCAPED = {ord(sign): f"\\{sign}" for sign in r"[]\^"}
ASCII_WORDS = re.compile(r"[a-zA-Z0-9]+|[^ a-zA-Z0-9]")  # twice as fast


@functools.cache
def _any_words() -> re.Pattern[str]:
    # Of ASCII, BERT takes all signs for punctuation, also those that Unicode does not: $ + < = > ^
    alone = rf"!-/:-@\[-`{{-~{character_class('P').translate(ESCAPED)}{HAN}"
    return re.compile(rf"[{alone}]|[^ {alone}]+")


def split_words(clean: str) -> list[str]:
    """Splits a text of `clean_for_bert` at spaces; punctuation and Han are words of their own."""
    return (ASCII_WORDS if clean.isascii() else _any_words()).findall(clean)


def cut_word(word: str, pieces: Container[str], longest: int) -> list[str]:
    """Takes the longest pieces of a word from the left, of at most `longest` characters.

    Returns nothing if a rest begins with no piece.
    """
    found: list[str] = []
    start, size, mark = 0, len(word), ""
    while start < size:
        for end in range(min(size, start + longest), start, -1):
            if (piece := mark + word[start:end]) in pieces:
                break
        else:
            return []
        found.append(piece)
        start, mark = end, MARK
    return found


def make_splitter(pieces: Sequence[str], unknown: int) -> Callable[[Sequence[str]], IdRows]:
    """Returns a function from clean texts to their ids, by tensorflow-text where it is installed.

    Both give the same ids; tensorflow-text takes half to two thirds of the time, in batches.
    `pieces` are in the order of their ids. Raises ValueError if tensorflow-text cannot use them.
    """
    if importlib.util.find_spec("tensorflow_text") is None:
        return PlainSplitter({piece: number for number, piece in enumerate(pieces)}, unknown)
    tf = tensorflow_on_cpu.load()
    import tensorflow_text

    try:
        with tf.device("CPU"):  # its own lower case folds more than BERT's, as ß to ss
            tokenizer = tensorflow_text.FastBertTokenizer(vocab=pieces, token_out_type=tf.int32)
    except RuntimeError as error:  # such as a piece of more than 256 bytes
        raise ValueError(tell_in_a_line(error)) from error

    def split(texts: Sequence[str]) -> IdRows:
        with tf.device("CPU"):
            ragged = tokenizer.tokenize(tf.constant(texts, tf.string))
        return ragged.values.numpy(), ragged.row_splits.numpy()

    return split


class PlainSplitter:
    """Splits clean texts into ids without tensorflow-text; the ids of words are remembered."""

    def __init__(self, ids: Mapping[str, int], unknown: int):
        self._ids, self._unknown = ids, unknown
        self._longest = max(map(len, ids))
        self._encode = functools.lru_cache(maxsize=2**17)(self._encode_word)

    def __call__(self, texts: Sequence[str]) -> IdRows:
        rows = [[id for word in split_words(text) for id in self._encode(word)] for text in texts]
        starts = np.cumsum([0, *map(len, rows)])
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32), starts

    def _encode_word(self, word: str) -> tuple[int, ...]:
        short = len(word.encode()) <= LONGEST_WORD
        pieces = cut_word(word, self._ids, self._longest) if short else []
        return tuple(self._ids[piece] for piece in pieces) or (self._unknown,)
