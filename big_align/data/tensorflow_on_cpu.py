"""TensorFlow, imported when it is first used and kept off the accelerators."""

import functools
import os
from typing import Any


@functools.cache
def load() -> Any:
    """Imports TensorFlow, which takes seconds, and hides the GPUs: they belong to the training."""
    # It logs a page at the start, and an error on machines without GPUs; failures are exceptions.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX sets 1 when it is imported
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # it already runs, with devices that were chosen elsewhere
        pass
    return tf
