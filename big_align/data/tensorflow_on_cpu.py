"""TensorFlow, imported when it is first used and kept off the accelerators."""

import functools
import os
from typing import Any


@functools.cache
def load() -> Any:
    """Imports TensorFlow, which takes seconds, and hides the GPUs: they belong to the training."""
    # It greets with a page, and calls a machine without GPUs an error; failures are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # it already runs; whoever started it has chosen its devices
        pass
    return tf
