"""From a name and values in a config to an object, with every value checked first.

A component is a config node with a `name` and the keyword arguments of what the name stands for.
Names are looked up in tables of "module:attribute", so that nothing is imported before it is used.
"""

import dataclasses
import importlib
import inspect
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from beartype.door import is_bearable
from ml_collections import ConfigDict, config_dict

from big_align.errors import ConfigError, suggest
from big_align.nodes import GIVEN, Node


def lookup(name: Any, table: Mapping[str, str], where: str) -> Any:
    """Imports what a name in a table stands for; "module:attribute" names anything else.

    Raises:
      ConfigError: the name is not in the table, or there is nothing to import.
    """
    if isinstance(name, str) and ":" in name:
        return _import(name, where)
    if name not in table:
        raise ConfigError(
            f"{where}.name = {name!r} is unknown{suggest(str(name), table)}; "
            f"known: {', '.join(sorted(table))}"
        )
    return _import(table[name], where)


def _import(path: str, where: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}.name = {path!r} cannot be imported: {error}") from error


class Parameter(NamedTuple):
    """A parameter that a config sets.

    Attributes:
      hint: its type.
      default: `inspect.Parameter.empty` for none.
      group: the parameter of the component that it is a field of; "" for its own.
    """

    hint: Any
    default: Any
    group: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


def list_given(target: Any) -> list[str]:
    """Returns the parameters that the program hands over: they have a type that no config can hold,
    none at all, or a mark (`nodes.Given`)."""
    hints = _hints(target)
    return [
        name
        for name, parameter in _signature(target).items()
        if not (_settable(hints.get(name)) or _is_group(parameter))
    ]


def list_settable(target: Any) -> dict[str, Parameter]:
    """Returns the parameters that a config sets, by name.

    Where the default of a parameter is a dataclass, its fields stand beside the component's own
    parameters: so a component takes a group of settings as one argument.
    """
    found, hints = {}, _hints(target)
    for name, parameter in _signature(target).items():
        if _is_group(parameter):
            fields = list_settable(type(parameter.default)).items()
            found |= {field: each._replace(group=name) for field, each in fields}
        elif _settable(hints.get(name)):
            found[name] = Parameter(hints[name], parameter.default)
    return found


def _signature(target: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a component; flax adds the first two to its modules."""
    parameters = inspect.signature(target).parameters
    return {name: x for name, x in parameters.items() if name not in ("parent", "name")}


def _hints(target: Any) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    return typing.get_type_hints(function, include_extras=True)


def _settable(hint: Any) -> bool:
    """Tells whether a config can hold values of a type."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return GIVEN not in hint.__metadata__ and _settable(hint.__origin__)
    if origin in (typing.Union, types.UnionType):
        return any(_settable(one) for one in typing.get_args(hint) if one is not types.NoneType)
    return hint is Any or (origin or hint) in (bool, int, float, str, tuple)


def _is_group(parameter: inspect.Parameter) -> bool:
    default = parameter.default
    return dataclasses.is_dataclass(default) and not inspect.isclass(default)


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
      given: parameters that the program fills in, though a config could.

    Returns:
      The values by name; those of a group stand beside the others.

    Raises:
      ConfigError: a name that the signature does not have, a value of another type, or a required
        parameter that is missing.
    """
    parameters = {k: x for k, x in list_settable(target).items() if k not in given}
    arguments = {}
    for name, value in node.items():
        if name == "name":
            continue
        if name not in parameters:
            raise ConfigError(
                f"{where}.{name} is unknown{suggest(name, parameters)}; "
                f"{target.__name__} takes: {', '.join(parameters)}"
            )
        hint = parameters[name].hint
        if value is None and not parameters[name].required:
            continue
        arguments[name] = _fit(value, hint)
        if not is_bearable(arguments[name], hint):
            shown = getattr(hint, "__name__", None) if inspect.isclass(hint) else str(hint)
            raise ConfigError(f"{where}.{name} = {value!r} is not of type {shown}")
    missing = sorted(k for k, x in parameters.items() if x.required and k not in arguments)
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing; {target.__name__} needs it")
    return arguments


def fill_defaults(target: Any, node: ConfigDict) -> None:
    """Adds what a signature leaves at its default to a node, so that a command line can change it.

    Args:
      target: a function or class with typed parameters.
      node: names and values; changed in place.
    """
    for name, (hint, default, _) in list_settable(target).items():
        if name in node:
            continue
        if isinstance(default, (bool, int, float, str, tuple)):
            node[name] = default
        elif default is None:
            kinds = [k for k in typing.get_args(hint) if k is not types.NoneType]
            kind = typing.get_origin(kinds[0]) or kinds[0] if kinds else object
            node[name] = config_dict.placeholder(kind)


def make(target: Any, node: Node, where: str, **given: Any) -> Any:
    """Calls a function or class with the checked values of a node and what the program gives.

    Raises:
      ConfigError: a value does not fit, or the call refuses one; the message names the field.
    """
    settable, signature = list_settable(target), _signature(target)
    grouped: dict[str, dict[str, Any]] = {x.group: {} for x in settable.values()} | {"": {}}
    for name, value in check_arguments(target, node, where, given).items():
        grouped[settable[name].group][name] = value
    for name in list_given(target):
        if name not in given and signature[name].default is inspect.Parameter.empty:
            raise ConfigError(
                f"{where}: {target.__name__} needs {name}, which nothing provides and no config "
                f"can hold; a type of bool, int, float, str or tuple makes it a field"
            )
    try:
        own = grouped.pop("")
        groups = {
            name: dataclasses.replace(signature[name].default, **fields)
            for name, fields in grouped.items()
        }
        return target(**own, **groups, **given)
    except ConfigError:
        raise
    except (ValueError, OSError) as error:
        raise ConfigError(f"{where}: {error}") from error


def make_named(table: Mapping[str, str], node: Node, where: str, **given: Any) -> Any:
    """Makes what the `name` of a node stands for in a table; the errors are those of `make`."""
    return make(lookup(node.get("name"), table, where), node, where, **given)


def without(node: Node, *fields: str) -> dict[str, Any]:
    """Returns a node without some fields."""
    return {k: v for k, v in node.items() if k not in fields}
