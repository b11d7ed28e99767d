"""Token ids of texts as a graph function."""

from collections.abc import Callable
from typing import Any

import numpy as np

from big_align.data import tensorflow_on_cpu
from big_align.data.text.bert_texts import clean_for_bert
from big_align.data.text.tokenizers import Tokenizer, WordPieceTokenizer

Tokenize = Callable[[Any], tuple[Any, Any]]
"""From texts [n] to their ids int32 [n l] and which of them are real, bool [n l]."""


def make_tokenize(tokenizer: Tokenizer) -> Tokenize:
    """Makes the function for a graph; only WordPiece, but for cleaning, does not run in Python.

    Args:
      tokenizer: gives the same ids outside a graph.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        return _make_wordpiece(tokenizer)
    return _call_python(tokenizer)


def _make_wordpiece(tokenizer: WordPieceTokenizer) -> Tokenize:
    tf = tensorflow_on_cpu.load()
    import tensorflow_text

    pad, start, end = (tokenizer.vocabulary.index(token) for token in ("[PAD]", "[CLS]", "[SEP]"))
    with tf.device("CPU"):
        pieces = tensorflow_text.FastBertTokenizer(
            vocab=tokenizer.vocabulary, token_out_type=tf.int32
        )

    def clean(texts: np.ndarray) -> np.ndarray:
        cleaned = (clean_for_bert(text.decode(), tokenizer.lowercase) for text in texts.tolist())
        return np.array([text.encode() for text in cleaned], object)

    def tokenize(texts: Any) -> tuple[Any, Any]:
        cleaned = tf.ensure_shape(tf.numpy_function(clean, [texts], tf.string), texts.shape)
        ids = pieces.tokenize(cleaned)[:, : tokenizer.length - 2]
        edge = tf.ones([tf.shape(texts)[0], 1], tf.int32)
        framed = tf.concat([edge * start, ids, edge * end], axis=1)
        text = framed.to_tensor(pad, shape=[None, tokenizer.length])
        return text, tf.sequence_mask(framed.row_lengths(), tokenizer.length)

    return tokenize


def _call_python(tokenizer: Tokenizer) -> Tokenize:
    tf = tensorflow_on_cpu.load()

    def run(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tokenizer([text.decode() for text in texts.tolist()])

    def tokenize(texts: Any) -> tuple[Any, Any]:
        text, text_mask = tf.numpy_function(run, [texts], [tf.int32, tf.bool])
        shape = (None, tokenizer.length)
        return tf.ensure_shape(text, shape), tf.ensure_shape(text_mask, shape)

    return tokenize
