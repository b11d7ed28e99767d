"""Signatures of the package are checked at each call: types, and the letters of shapes.

jaxtyping's import hook decorates all functions. Binding the arguments of a call to parameters, as
it does, costs a hundred times what beartype does; and most functions that are imported are never
called. So what has no arrays goes to beartype alone, and nothing is prepared before a first call.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any, ForwardRef, Literal

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
            parts = [part for hint in function.__annotations__.values() for part in _parts(hint)]
            named = any(isinstance(part, str | ForwardRef) for part in parts)
            if named or function.__closure__:
                # It finds what is named, and what a closure holds does not wait for the collector.
                checked = _jaxtyped(function, typechecker=beartype)
            elif any(inspect.isclass(part) and issubclass(part, AbstractArray) for part in parts):
                checked = _jaxtyped(beartype(function), typechecker=None)
            else:
                checked = beartype(function)
        return checked(*args, **kwargs)

    return call


def _parts(hint: Any) -> Iterator[Any]:
    """Yields what a hint is made of, but for the values of a `Literal`."""
    yield hint
    if typing.get_origin(hint) is not Literal:
        for part in typing.get_args(hint):
            for each in part if isinstance(part, list) else [part]:
                yield from _parts(each)
