"""Modules that run in evaluation mode while the model around them is trained."""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

from big_align.core.module_paths import fits, split_path

Pattern = tuple[str, ...]
_LOCKED: contextvars.ContextVar[tuple[Pattern, ...]] = contextvars.ContextVar("locked", default=())


@contextlib.contextmanager
def locking(model: Sequence[str], paths: Sequence[str]) -> Iterator[None]:
    """Traces a model some of whose modules are locked, by paths or patterns from the model on.

    The path of the model itself is from the module that is applied.
    """
    token = _LOCKED.set(tuple((*model, *split_path(path)) for path in paths))
    try:
        yield
    finally:
        _LOCKED.reset(token)


def is_locked(path: Sequence[str]) -> bool:
    """Returns whether the module at a path is locked, itself or within another."""
    return any(fits(path, pattern) for pattern in _LOCKED.get())


def has_locked(path: Sequence[str]) -> bool:
    """Returns whether something inside of the module at a path may be locked by itself."""
    return any(fits(pattern, path) for pattern in _LOCKED.get())
