"""Sources of examples, their order, image and text operations, and the loaders that batch them.

Nothing that needs TensorFlow is imported eagerly: only WordPiece, TFRecord, TFDS and paths that
fsspec cannot open load it, when they are used.
"""
