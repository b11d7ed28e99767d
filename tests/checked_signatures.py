"""Signatures of the package are checked at each call: types, and the letters of shapes.

jaxtyping's import hook decorates all functions. Binding the arguments of a call to parameters, as
it does, costs a hundred times what beartype does; and most functions that are imported are never
called. So what has no arrays goes to beartype alone, and nothing is prepared before a first call.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Literal

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray

_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Checks the modules of the package that are imported from now on."""
    jaxtyping.install_import_hook("big_align", "beartype.beartype")
    jaxtyping.jaxtyped = _decorate  # what the hook's code calls, by this name


def _decorate(*, typechecker: Callable) -> Callable:
    del typechecker  # the hook's own way to beartype
    return lambda given: _check_class(given) if inspect.isclass(given) else _check(given)


def _check_class(given: type) -> type:
    """Checks the calls of a dataclass, unless it inherits how it is called."""
    own = vars(given).get("__init__")
    if dataclasses.is_dataclass(given) and own and not hasattr(own, "__wrapped__"):
        given.__init__ = _check(own)
    return given


def _check(function: Callable) -> Callable:
    checked = None

    @functools.wraps(function)
    def call(*args, **kwargs):
        __tracebackhide__ = True
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        if checked is None:
            if any(map(_needs_jaxtyping, function.__annotations__.values())):
                checked = _jaxtyped(function, typechecker=beartype)
            else:
                checked = beartype(function)
        return checked(*args, **kwargs)

    return call


def _needs_jaxtyping(hint: Any) -> bool:
    """Returns whether a hint has arrays, or is a text that jaxtyping resolves."""
    if isinstance(hint, str) or inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    if typing.get_origin(hint) is Literal:
        return False
    parts = typing.get_args(hint)
    return any(map(_needs_jaxtyping, [y for x in parts for y in (x if type(x) is list else [x])]))
