"""From a name and values in a config to an object, with every value checked first.

A component is a config node with a `name` and the keyword arguments of what the name refers to.
Names are looked up in tables of "module:attribute", so that nothing is imported before it is used.
"""

import dataclasses
import importlib
import inspect
import operator
import os
import re
import shlex
import sys
import traceback
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from beartype.door import is_bearable
from ml_collections import ConfigDict

from big_align.config.components.written_values import read_value
from big_align.core.errors import ConfigError, FieldError, put_in_a_line, suggest, tell_in_a_line
from big_align.core.nodes import GIVEN, Node

ELSEWHERE = {
    **{"webdataset": "tar", "wds": "tar", "img2dataset": "tar"},
    **{"huggingface": "parquet", "hf": "parquet", "arrow": "parquet"},
    **{"jsonl": "imagefolder", "json": "coco", "tsv": "csv", "imagenet": "folder"},
}
"""What sources are called elsewhere, and their names here."""


def lookup(name: Any, table: Mapping[str, str], where: str) -> Any:
    """Imports what a name in a table refers to; "module:attribute" refers to anything else.

    `where` is the node's place in the config, or the flag of a tool, as in "--source_name".
    """
    if isinstance(name, str) and ":" in name:
        return import_attribute(name, f"{where}.name")
    if not isinstance(name, str) or name not in table:
        near = get_close_matches(str(name), table, 1) or [ELSEWHERE.get(str(name).lower())]
        field = where if where.startswith("--") else f"{where}.name"
        right = f"; write --{field.removeprefix('--')}={near[0]}" if near[0] in table else ""
        raise ConfigError(
            f"{field} = {name!r} is unknown{suggest(str(name), table)}; "
            f"known: {', '.join(sorted(table))}{right}"
        )
    return import_attribute(table[name], f"{where}.name")


def import_attribute(path: str, field: str) -> Any:
    """Imports what a "module:attribute" refers to, for a field that gave it."""
    module, _, attribute = path.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a module is code: it may raise anything
        plain = isinstance(error, ImportError | AttributeError)  # they say what there is not
        reason = put_in_a_line(str(error)) if plain else tell_in_a_line(error)
        told = f"{field} = {path!r} cannot be imported: {reason}"
        if not plain and not isinstance(error, SyntaxError):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            told += f" ({frame.filename}, line {frame.lineno})"
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            where = sys.path[0] or os.getcwd()
            told += f"; it is neither in {where} nor installed, and PYTHONPATH=FOLDER adds a folder"
        raise ConfigError(told) from error


class Parameter(NamedTuple):
    """A parameter that a config sets."""

    hint: Any
    default: Any  # `inspect.Parameter.empty` if there is none
    group: str = ""  # the component's parameter that has it as a field; "": its own

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def takes_none(self) -> bool:
        """Whether None is a value of its own, and not just a way to leave the default."""
        allowed = types.NoneType in typing.get_args(self.hint)
        return self.required or (allowed and self.default is not None)


def list_given(target: Any) -> list[str]:
    """Returns the parameters that the program supplies.

    They have a type that no config can hold, no type at all, or a mark (`nodes.Given`).
    """
    hints = _hints(target)
    return [
        name
        for name, parameter in _signature(target).items()
        if not (_settable(hints.get(name)) or _is_group(parameter))
    ]


def list_settable(target: Any) -> dict[str, Parameter]:
    """Returns the parameters that a config sets, by name.

    If the default of a parameter is a dataclass, its fields are listed with the component's own
    parameters, so that a component can take a group of settings as one argument.
    """
    found, hints = {}, _hints(target)
    for name, parameter in _signature(target).items():
        if _is_group(parameter):
            fields = list_settable(type(parameter.default)).items()
            found |= {field: each._replace(group=name) for field, each in fields}
        elif _settable(hints.get(name)):
            found[name] = Parameter(hints[name], parameter.default)
    return found


def check_settable(target: Any, name: str, where: str) -> None:
    """Checks that a name is not that of a parameter that would be a field if it had a type.

    Raises:
      ConfigError: it is; the message says what to write in the signature.
    """
    parameter, hint = _signature(target).get(name), _hints(target).get(name)
    if parameter is None or hint is not None:
        return
    default, owner = parameter.default, target.__name__
    is_value = isinstance(default, bool | int | float | str | tuple)
    right = f"{name}: {type(default).__name__} = {default!r}" if is_value else f"{name}: float"
    owner += ".__init__" if inspect.isclass(target) else ""
    raise ConfigError(f"{where}: {name} has no type in {owner}; write {right}")


def _signature(target: Any) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a component, without the two that flax adds to its modules."""
    parameters = inspect.signature(target).parameters
    return {name: x for name, x in parameters.items() if name not in ("parent", "name")}


def _hints(target: Any) -> dict[str, Any]:
    function = target.__init__ if inspect.isclass(target) else target
    return typing.get_type_hints(function, include_extras=True)


def _settable(hint: Any) -> bool:
    """Returns whether a config can hold values of a type."""
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
    """Converts what config files cannot distinguish: lists for tuples, integers for floats."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, list) and any(typing.get_origin(c) is tuple for c in choices):
        return tuple(_fit(item, Any) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if float in choices and int not in choices else value
    return value


def check_arguments(
    target: Any, node: Node, where: str, given: Collection[str] = ()
) -> dict[str, Any]:
    """Checks the values of a config node against a signature, without calling it.

    `name` is left out, and so is None where it can only stand for the default. The parameters in
    `given` are supplied by the program, though a config could. Returns the values by name, with
    those of groups among the others.
    """
    parameters = {k: x for k, x in list_settable(target).items() if k not in given}
    arguments = {}
    for name, value in node.items():
        if name == "name":
            continue
        if name not in parameters:
            check_settable(target, name, f"{where}.{name}")
            raise ConfigError(
                f"{where}.{name} is unknown{suggest(name, parameters)}; "
                f"{target.__name__} takes: {', '.join(parameters)}"
                f"{mend(where, name, value, parameters)}"
            )
        hint = parameters[name].hint
        if value is None and not parameters[name].takes_none:
            continue
        arguments[name] = _fit(value, hint)
        if not is_bearable(arguments[name], hint):
            shown = getattr(hint, "__name__", None) if inspect.isclass(hint) else str(hint)
            example = advise(where, **{name: _example(name, parameters[name])})
            raise ConfigError(f"{where}.{name} = {value!r} is not of type {shown}{example}")
    missing = sorted(k for k, x in parameters.items() if x.required and k not in arguments)
    if missing:
        example = advise(where, **{missing[0]: _example(missing[0], parameters[missing[0]])})
        raise ConfigError(f"{where}.{missing[0]} is missing; {target.__name__} needs it{example}")
    return arguments


def advise(where: str, **fields: Any) -> str:
    """Returns "; write --config.FIELD=VALUE", which sets fields on a command line.

    For the flag of a tool, as in "--source", fields are those of --source_argument.
    """
    if where.startswith("--"):
        flags = [(f"{where}_argument={name}", value) for name, value in fields.items()]
    else:
        flags = [(f"--{where}.{name}", value) for name, value in fields.items()]
    words = (f"{flag}={shlex.quote(str(value))}" for flag, value in flags)
    return f"; write {' '.join(words)}" if flags else ""


def mend(where: str, name: str, value: Any, known: Iterable[str]) -> str:
    """Returns what to set instead of an unknown field: the nearest one, or nothing."""
    near = get_close_matches(name, list(known), 1)
    return advise(where, **{near[0]: value}) if near else f"; leave {where}.{name} out"


def _example(name: str, parameter: Parameter) -> Any:
    """Returns an example value for a field: its default, or a value of its type."""
    if not parameter.required and parameter.default is not None:
        return parameter.default
    several = "('a', 'b')" if "tuple[str" in str(parameter.hint) else "(1, 2)"
    examples = {bool: True, int: 1, float: 0.5, str: name.upper(), tuple: several}
    kinds = list_kinds(parameter.hint)
    return next((value for kind, value in examples.items() if kind in kinds), name.upper())


def list_kinds(hint: Any) -> list[type]:
    """Returns the types that a value may have, without None and without element types."""
    if typing.get_origin(hint) is typing.Annotated:
        return list_kinds(hint.__origin__)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for one in typing.get_args(hint) for kind in list_kinds(one)]
        return [kind for kind in kinds if kind is not types.NoneType]
    return [typing.get_origin(hint) or hint]


def read_argument(text: str, hint: Any) -> Any:
    """Returns the value that a text on a command line stands for, in a field of a type.

    What does not read so stays a text, which `check_arguments` refuses.
    """
    if text == "None" and types.NoneType in typing.get_args(hint):
        return None
    kinds = list_kinds(hint)
    try:
        value = read_value(text, kinds)
    except ValueError:
        return text
    return value if str not in kinds or is_bearable(_fit(value, hint), hint) else text


def fill_defaults(target: Any, node: ConfigDict) -> None:
    """Adds the defaults in a signature to a node, so that a command line can change them."""
    for name, parameter in list_settable(target).items():
        kinds = (bool, int, float, str, tuple, types.NoneType)
        if name not in node and isinstance(parameter.default, kinds):
            node[name] = parameter.default


def make(target: Any, node: Node, where: str, **given: Any) -> Any:
    """Calls a function or class with the checked values of a node and what the program supplies.

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
    except FieldError as error:
        raise ConfigError(f"{where}: {error.message}{advise(where, **error.fields)}") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"{where}: {error}{_point_at(where, str(error), settable)}") from error


def _point_at(where: str, message: str, fields: Iterable[str]) -> str:
    """Returns the flag of the field that a component's error is about, if it names one."""
    for name in fields if where.startswith("config") else ():
        if re.search(rf"(^|\W){name}( = |=| is |: )|`{name}`|the {name} '", message):
            return f"; --{where}.{name}=... sets it"
    return ""


def make_named(table: Mapping[str, str], node: Node, where: str, **given: Any) -> Any:
    """Makes what the `name` of a node refers to in a table; raises the errors of `make`."""
    return make(lookup(node.get("name"), table, where), node, where, **given)


def without(node: Node, *fields: str) -> dict[str, Any]:
    """Returns a node without some fields."""
    return {k: v for k, v in node.items() if k not in fields}
