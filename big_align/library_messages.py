"""What libraries log, reduced to what a user can act on."""

import logging
import sys
import traceback
from typing import Any

import absl.logging

LOGGER = "jax._src.xla_bridge"


def shorten() -> None:
    """Leaves out what Orbax logs besides its exceptions, and shortens JAX's warnings about plugins.

    Orbax warns about its own defaults. When it cannot write an array, it raises that error and
    abandons the writes of the others, which on a full disk fail too: Python then tells each of them
    with a traceback. A plugin of JAX that does not start, such as CUDA's on a
    laptop, is one line with its causes, not a traceback. JAX goes on without it. That is right
    where a plugin is installed for its compiler alone, and where its devices are missed, the causes
    tell why.
    """
    # A filter is added once, however often this is called.
    absl.logging.get_absl_logger().addFilter(_is_not_of_orbax)
    logging.getLogger("asyncio").addFilter(_is_not_abandoned_by_orbax)
    logging.getLogger(LOGGER).addFilter(_shorten_failure)
    sys.unraisablehook = _pass_over_closed_loops


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def _is_not_abandoned_by_orbax(record: logging.LogRecord) -> bool:
    frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else ()
    abandoned = "exception was never retrieved" in record.getMessage()
    # The error of a write itself has no frames: it was raised in TensorStore's C++.
    return not (abandoned and all("orbax" in frame.filename for frame in frames))


def _pass_over_closed_loops(unraisable: Any) -> None:
    """Shows unraisable exceptions, except the many that Orbax leaves when a save has failed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _shorten_failure(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and "plugin configuration error" in record.getMessage():
        named = record.args[0] if record.args else "a plugin"
        record.msg, record.args = "JAX goes on without %s: %s", (named, _list_causes(error))
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = None
    return True


def _list_causes(error: BaseException | None) -> str:
    """Returns the messages of an error and of those that caused it, on one line."""
    messages = []
    while error is not None:
        messages.append(" ".join(str(error).split()) or type(error).__name__)
        error = error.__cause__
    return "; ".join(messages)
