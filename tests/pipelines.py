"""Pipelines as users write them, of digits as `tests/tiny_config.py` has them."""

import numpy as np
import tensorflow as tf

from big_align.data.sources.digits import DIGIT_WORDS, digits_source
from big_align.data.text.tokenizers import WordTokenizer


def examples(config):
    """Digits with captions, in their own order; they end."""
    source = digits_source("train")
    words = WordTokenizer(DIGIT_WORDS, config.tokenizer.length)
    read = [source.read(0, number) for number in range(200)]
    text, text_mask = words([example.captions[0] for example in read])
    images = np.stack([example.image for example in read])
    images = tf.cast(tf.round(tf.image.resize(images, (8, 8))), tf.uint8)
    label = np.array([example.label for example in read], np.int32)
    return tf.data.Dataset.from_tensor_slices(
        {"image": images, "text": text, "text_mask": text_mask, "label": label}
    )


def batches(config, rows):
    """Global batches in a random order without end, of which this process keeps its rows."""
    shuffled = examples(config).repeat().shuffle(64, seed=7)
    whole = shuffled.batch(config.batch_size, drop_remainder=True)
    return whole.map(lambda batch: {k: tf.gather(v, rows) for k, v in batch.items()})


def from_step(config, start_step, rows):
    """Begins at a step."""
    return batches(config, rows).skip(start_step).prefetch(2)


def saved(config, rows):
    """Always begins at the start: its iterator is saved."""
    return batches(config, rows).prefetch(2)


def beyond(config, rows):
    """Has ids of another vocabulary."""
    return batches(config, rows).map(lambda batch: batch | {"text": batch["text"] + 1_000_000})


def ending(config, rows):
    return examples(config).batch(len(rows), drop_remainder=True)


def uneven(config, rows):
    return examples(config).batch(len(rows)).repeat()


def python_inside(config, rows):
    """Has a function whose state TensorFlow cannot save."""
    made = batches(config, rows)
    return made.map(lambda batch: batch | {"label": _call(batch["label"], len(rows))})


def _call(label, size):
    return tf.ensure_shape(tf.numpy_function(lambda x: x, [label], tf.int32), [size])


def needs_more(config, vocabulary):
    raise AssertionError("nobody calls it")


def no_dataset(rows):
    return [rows]
