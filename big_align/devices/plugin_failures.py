"""What JAX logs of a plugin that does not start, such as CUDA's on a laptop: one line of it."""

import logging

LOGGER = "jax._src.xla_bridge"


def shorten_failures() -> None:
    """Makes JAX log the failure of a plugin as one line with its causes, not as a traceback.

    JAX goes on without the plugin. That is right where a plugin is installed for its compiler
    alone, and where its devices are missed, the causes tell why.
    """
    logging.getLogger(LOGGER).addFilter(_shorten)  # once, however often it is called


def _shorten(record: logging.LogRecord) -> bool:
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
