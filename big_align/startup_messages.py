"""What libraries log at every start, reduced to what a user can act on."""

import logging

import absl.logging

LOGGER = "jax._src.xla_bridge"


def shorten() -> None:
    """Leaves out Orbax's warnings about its own defaults, and shortens JAX's about plugins.

    Orbax's errors are exceptions anyway. A plugin of JAX that does not start, such as CUDA's on a
    laptop, is one line with its causes, not a traceback. JAX goes on without it. That is right
    where a plugin is installed for its compiler alone, and where its devices are missed, the causes
    tell why.
    """
    # A filter is added once, however often this is called.
    absl.logging.get_absl_logger().addFilter(_is_not_of_orbax)
    logging.getLogger(LOGGER).addFilter(_shorten_failure)


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


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
