"""From a name and values in a config to an object, with every value checked first.

A component is a config node with a `name` and the keyword arguments of what the name stands for.
Names are looked up in tables of "module:attribute", so that nothing is imported before it is used.
"""

import importlib
import inspect
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

from beartype.door import is_bearable
from ml_collections import ConfigDict, config_dict

from big_align.errors import ConfigError, suggest
from big_align.types import Node


def lookup(name: Any, table: Mapping[str, str], where: str) -> Any:
    """Imports what a name in a table stands for.

    Raises:
      ConfigError: the name is not in the table.
    """
    if name not in table:
        raise ConfigError(
            f"{where}.name = {name!r} is unknown{suggest(str(name), table)}; "
            f"known: {', '.join(sorted(table))}"
        )
    module, attribute = table[name].split(":")
    return operator.attrgetter(attribute)(importlib.import_module(module))


def _fit(value: Any, hint: Any) -> Any:
    """Converts what config files cannot tell apart: lists for tuples, integers for floats."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, list) and any(typing.get_origin(c) is tuple for c in choices):
        return tuple(_fit(item, Any) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if float in choices and int not in choices else value
    return value


def check_arguments(
    target: Any, node: Node, where: str, given: typing.Collection[str] = ()
) -> dict[str, Any]:
    """Checks the values of a config node against a signature, without calling it.

    Args:
      target: a function or class with typed parameters.
      node: names and values; `name` and values of None where the parameter has a default are left
        out.
      where: the node's place in the config, for messages.
      given: parameters that the program fills in.

    Returns:
      The keyword arguments.

    Raises:
      ConfigError: a name that the signature does not have, a value of another type, or a required
        parameter that is missing.
    """
    function = target.__init__ if inspect.isclass(target) else target
    parameters = dict(inspect.signature(target).parameters)
    hints = typing.get_type_hints(function)
    for hidden in ("parent", "name", *given):
        parameters.pop(hidden, None)
    arguments = {}
    for name, value in node.items():
        if name == "name":
            continue
        if name not in parameters:
            raise ConfigError(
                f"{where}.{name} is unknown{suggest(name, parameters)}; "
                f"{target.__name__} takes: {', '.join(parameters)}"
            )
        if value is None and parameters[name].default is not inspect.Parameter.empty:
            continue
        hint = hints.get(name, Any)
        arguments[name] = _fit(value, hint)
        if not is_bearable(arguments[name], hint):
            shown = getattr(hint, "__name__", None) if inspect.isclass(hint) else str(hint)
            raise ConfigError(f"{where}.{name} = {value!r} is not of type {shown}")
    required = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
    missing = sorted(required - arguments.keys())
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing; {target.__name__} needs it")
    return arguments


def fill_defaults(target: Any, node: ConfigDict, given: typing.Collection[str] = ()) -> None:
    """Adds what a signature leaves at its default to a node, so that a command line can change it.

    Args:
      target: a function or class with typed parameters.
      node: names and values; changed in place.
      given: parameters that the program fills in.
    """
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    for name, parameter in inspect.signature(target).parameters.items():
        default = parameter.default
        if name in ("parent", "name", *given) or name in node:
            continue
        if isinstance(default, (bool, int, float, str, tuple)):
            node[name] = default
        elif default is None:
            kinds = [k for k in typing.get_args(hints.get(name)) if k is not types.NoneType]
            kind = typing.get_origin(kinds[0]) or kinds[0] if kinds else object
            node[name] = config_dict.placeholder(kind)


def make(target: Any, node: Node, where: str, **given: Any) -> Any:
    """Calls a function or class with the checked values of a node and what the program gives.

    Raises:
      ConfigError: a value does not fit, or the call refuses one; the message names the field.
    """
    arguments = check_arguments(target, node, where, given)
    try:
        return target(**arguments, **given)
    except ConfigError:
        raise
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"{where}: {error}") from error


def make_named(table: Mapping[str, str], node: Node, where: str, **given: Any) -> Any:
    """Makes what the `name` of a node stands for in a table; the errors are those of `make`."""
    return make(lookup(node.get("name"), table, where), node, where, **given)


def without(node: Node, *fields: str) -> dict[str, Any]:
    """Returns a node without some fields."""
    return {k: v for k, v in node.items() if k not in fields}
