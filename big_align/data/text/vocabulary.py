"""A WordPiece vocabulary learned from the captions of a source."""

import collections
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from big_align.data import boundary, examples, files, tensorflow_on_cpu
from big_align.data.sources import record_source, tar_source
from big_align.data.text import tokenizers

BATCH = 4096  # captions split into words by one call
LOG_EVERY = 1_000_000


def open_captions(
    source: str, caption: str | None = None, data_dir: str | None = None
) -> Iterator[str]:
    """Yields every caption of a source; broken examples are counted in the log and left out.

    Args:
      source: paths of tar, TFRecord or text files (one caption a line), told apart by whether
        their names hold `.tar` or `tfrecord`; or `tfds:NAME:SPLIT`.
      caption: the member or feature that holds the text; None is `txt` in tar files and `caption`
        elsewhere.
      data_dir: where the TFDS data set is.

    Raises:
      ValueError: nothing is found.
    """
    if source.startswith("tfds:"):
        name, _, split = source.removeprefix("tfds:").rpartition(":")
        if not name:
            raise ValueError(f"source {source!r} does not read as tfds:NAME:SPLIT")
        opened: Any = record_source.TFDSSource(name, split, data_dir, caption=caption or "caption")
    elif ".tar" in source:
        opened = tar_source.TarSource(source, caption=caption or "txt")
    elif "tfrecord" in source:
        opened = record_source.TFRecordSource(source, caption=caption or "caption")
    else:
        return read_lines(source)
    return _read_captions(opened)


def count_words(captions: Iterable[str], lowercase: bool = True) -> collections.Counter:
    """Counts words as BERT's basic tokenizer splits them, so as WordPieceTokenizer does."""
    tf = tensorflow_on_cpu.load()
    from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer

    splitter = BasicTokenizer(lower_case=lowercase)
    counts: collections.Counter = collections.Counter()
    batch: list[str] = []

    def count() -> None:
        words = splitter.tokenize(tf.constant(batch)).flat_values.numpy()
        counts.update(words.tolist())
        batch.clear()

    for number, caption in enumerate(captions, start=1):
        batch.append(caption)
        if len(batch) == BATCH:
            count()
        if number % LOG_EVERY == 0:
            logging.info("%d captions, %d different words", number, len(counts))
    if batch:
        count()
    return collections.Counter({word.decode(): n for word, n in counts.items()})


def learn_vocabulary(counts: collections.Counter, size: int) -> list[str]:
    """Learns the pieces that cover words best (Schuster & Nakajima 2012, tensorflow-text).

    Args:
      counts: how often each word occurs.
      size: the largest number of pieces, special tokens among them.

    Returns:
      The special tokens, then the pieces; a text with few words gives fewer than `size`.

    Raises:
      ValueError: no words, or a size that does not hold the special tokens and the characters.
    """
    special = list(tokenizers.SPECIAL_TOKENS)
    if size <= len(special):
        raise ValueError(f"size is {size}; it must be above the {len(special)} special tokens")
    if not counts:
        raise ValueError("there are no words to learn from")
    tensorflow_on_cpu.load()
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    logging.info("learning from %d words, %d different", counts.total(), len(counts))
    pieces = learner.learn(
        counts.most_common(),
        vocab_size=size,
        reserved_tokens=special,
        lower_thresh=2,  # the learner's own 10 leaves small sets with a fraction of the pieces
        slack_ratio=0.02,
    )
    # the learner may end above the size; single characters stay, so that every word can be spelled
    pieces = [piece for piece in pieces if piece not in special]
    pieces.sort(key=lambda piece: len(piece.removeprefix("##")) > 1)
    characters = sum(len(piece.removeprefix("##")) == 1 for piece in pieces)
    if len(special) + characters > size:
        raise ValueError(f"size is {size}, and the captions have {characters} single characters")
    return (special + pieces)[:size]


def write_vocabulary(pieces: list[str], path: str) -> None:
    """Writes one piece a line, beside the place and then renamed: never half a vocabulary."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, encoding="utf-8", delete=False) as file:
        file.write("\n".join(pieces) + "\n")
    os.replace(file.name, path)


def read_lines(paths: str) -> Iterator[str]:
    """Yields the lines of text files (globs, braces, comma lists) that are not empty.

    Raises:
      ValueError: nothing is found.
    """
    for path in files.expand_paths(paths):
        with files.files_of(path).open(path) as file:
            data = file.read()
        yield from filter(None, map(str.strip, data.decode("utf-8", "replace").splitlines()))


def _read_captions(source: Any) -> Iterator[str]:
    broken = 0
    for shard, size in enumerate(source.shard_sizes.tolist()):
        for index in range(size):
            try:
                yield from boundary.read_texts(source, shard, index)[0]
            except examples.BrokenExample as error:
                broken += 1
                if broken == 1:
                    logging.warning("left out %s: %s", source.name(shard, index), error)
    broken += int(np.sum(source.broken))
    if broken:
        logging.warning("%d broken examples were left out", broken)
