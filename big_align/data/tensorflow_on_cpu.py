"""TensorFlow, imported when it is first used and kept off the accelerators."""

import functools
from typing import Any


@functools.cache
def load() -> Any:
    """Imports TensorFlow, which takes seconds, and hides the GPUs: they belong to the training."""
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # it already runs; whoever started it has chosen its devices
        pass
    return tf
