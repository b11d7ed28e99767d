"""TensorFlow, imported when it is first used and kept off the accelerators."""

import functools
import importlib
import os
from typing import Any

from big_align.core.errors import UserError, put_in_a_line

INSTALL = "`pip install big_align` (in a checkout: `pip install -e .`) adds what is missing"


def load(user: str = "tf.data", instead: str = "", name: str = "tensorflow") -> Any:
    """Imports TensorFlow, which takes seconds, and hides the GPUs: they belong to the training.

    Args:
      user: what needs it, for the message of an error.
      instead: what else there is to do, for the same.
      name: a package that needs TensorFlow, to import and return after it.

    Raises:
      UserError: it cannot be imported.
    """
    try:
        _load()
        return importlib.import_module(name)
    except ImportError as error:
        told = f"{user} needs the package {name} ({put_in_a_line(str(error))}): {INSTALL}"
        raise UserError(told + (f"; or {instead}" if instead else "")) from error


@functools.cache
def _load() -> None:
    # It logs a page at the start, and an error on machines without GPUs; failures are exceptions.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX sets 1 when it is imported
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # it already runs, with devices that were chosen elsewhere
        pass
