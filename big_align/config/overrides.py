"""A config with changes, as a command line gives them: --config.objective.name=siglip.

First whole nodes are replaced, then the components that changes name are put into the config with
all of their fields, and then each field takes the value that its text stands for.
"""

import ast
import importlib.machinery
import inspect
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from big_align.config.components.signatures import (
    advise,
    check_settable,
    fill_defaults,
    list_settable,
    lookup,
    mend,
)
from big_align.config.components.written_values import read_value
from big_align.config.config_files import find_config, read_config
from big_align.config.defaults import complete_config
from big_align.config.fields import describe_fields
from big_align.config.home_folder import expand_home
from big_align.config.near_fields import fit_steps, suggest_field
from big_align.config.places import find_table, in_run, source_fields
from big_align.core.errors import (
    ConfigError,
    UserError,
    checking_values,
    put_in_a_line,
    suggest,
    tell_in_a_line,
)
from big_align.core.nodes import Node, find_node
from big_align.data.loading.settings import LoaderSettings

KEPT = ("length", "max_length", "shorten", "transform", "vocab_size")
"""Fields that a component takes over from the one that it replaces, as it does with sources.

They say how it fits its surroundings; any other field may mean something else in the new component,
even under the same name.
"""
STAGE = r"(?:first\.)*"
ADDED = rf"{STAGE}(evaluators\.\w+|data\.mixture\.\w+(\.source)?)"
"""The places of nodes that a command line may add."""
CONFIG_MODULE = "big_align_config_file"
OF_PARTS = ("classes", "weight")  # what a part of a mixture has besides the settings of a loader


def split_changes(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Splits a command line into changes of the config, and the other words.

    A change is --config.FIELD=VALUE or --config.FIELD VALUE; without a value it is True. Returns
    the last value of each field as a text, by the field's place, and the other words.
    """
    changes, others, left = {}, [], iter(range(len(words)))
    for number in left:
        word, following = words[number], words[number + 1 : number + 2]
        _check_name(word)
        match = re.fullmatch(r"--?config\.([\w.]+)(?:=(.*))?", word, re.DOTALL)
        if not match:
            others.append(word)
        elif match[2] is None and following and not following[0].startswith("--"):
            changes[match[1]] = following[0]
            next(left)
        else:
            changes[match[1]] = "True" if match[2] is None else match[2]
    return changes, others


def load_config(path: str | os.PathLike, *overrides: str) -> ConfigDict:
    """Loads a config as a command line does, for a notebook.

    Args:
      path: a file or a name of the package, as in `configs/NAME.py`, `NAME:argument` or
        `WORKDIR/config.json`.
      overrides: as in `--config.batch_size=8`; values are written as on a command line.

    Returns:
      The config with all defaults; it is locked: its fields can be set, and none added.

    Raises:
      UserError: there is no such file, or an override does not fit; the message is one line.

    Examples:
      >>> import big_align
      >>> config = big_align.load_config("quickstart", "--config.batch_size=64")
      >>> config.batch_size, config.total_steps, config.objective.name
      (64, 600, 'align')
    """
    changes, others = split_changes(expand_home(overrides))
    refuse_words(others)
    return load_changed(os.path.expanduser(path), changes)


def read_given(config: Node | str | os.PathLike, *overrides: str) -> ConfigDict:
    """Returns a config that is given itself, or by its file and overrides, as in `load_config`.

    Raises:
      UserError: there is no such file, an override does not fit, or there is no file to override.
    """
    if isinstance(config, str | os.PathLike):
        return load_config(config, *overrides)
    if overrides:
        raise UserError(f"{overrides[0]} changes a config file; set the fields of a config itself")
    return config if isinstance(config, ConfigDict) else ConfigDict(config)


def refuse_words(words: Sequence[str]) -> None:
    """Raises a UserError if words of a command line are no flags."""
    if words:
        raise UserError(f"unexpected arguments {list(words)}; flags are written --name=value")


def _check_name(word: str) -> None:
    """Raises a ConfigError if a flag names a field by what cannot be a name."""
    match = re.fullmatch(r"(--?config\.)([^=\[]*)(=.*)?", word, re.DOTALL)
    names = match[2].split(".") if match else []
    if all(map(str.isidentifier, names)):
        return
    wrong = next(name for name in names if not name.isidentifier())
    right = [re.sub(r"\W", "_", name) for name in names]
    told = f"; write {match[1]}{'.'.join(right)}{match[3] or '=VALUE'}"
    told = told if all(map(str.isidentifier, right)) else ""
    raise ConfigError(f"{word}: {wrong!r} is no name of a field{told}")


@checking_values()
def load_changed(path: str, changes: Mapping[str, str]) -> ConfigDict:
    """Loads the config that a path names, with changes by place and all defaults; it is locked."""
    found = find_config(path)
    config = read_config(found) if found.endswith(".json") else _run_file(found)
    with config.unlocked():
        nodes = [place for place in changes if find_node(config, place) is not None]
        nodes += [place for place in changes if re.fullmatch(ADDED, place) and place not in nodes]
        for place in sorted(nodes, key=lambda place: place.count(".")):
            _set_node(config, place, changes[place])
        fields = {place: text for place, text in changes.items() if place not in nodes}
        choose_components(config, fields)
        for place, text in fields.items():
            _set_field(config, place, text)
        complete_config(config)
        if any(place.rpartition(".")[2] == "total_steps" for place in changes):
            fit_steps(config, changes)
    config.lock()
    return config


def _run_file(found: str) -> ConfigDict:
    """Returns what `get_config` of a file returns; raises a UserError if it is no config."""
    path, colon, argument = found.partition(":")
    # What is defined in the file is looked up in its module, which is a new one for each file.
    module = sys.modules[CONFIG_MODULE] = types.ModuleType(CONFIG_MODULE)
    try:
        importlib.machinery.SourceFileLoader(CONFIG_MODULE, path).exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError("it defines no get_config()")
        if colon and not inspect.signature(module.get_config).parameters:
            raise UserError(f"it takes no argument; leave :{argument} out")
        config = module.get_config(*([argument] if colon else []))
    except Exception as error:  # a config file is code: it may raise anything
        raise UserError(f"--config={found}: {tell_in_a_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"--config={found}: get_config() returns {put_in_a_line(repr(config))}, which is no "
            "ml_collections.ConfigDict"
        )
    return config


def _set_node(config: ConfigDict, place: str, text: str) -> None:
    """Replaces a node by the dictionary that a text stands for, or adds it."""
    above, _, name = place.rpartition(".")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            f"--config.{place}={text}: it has fields; --config.{place}={{}} empties it"
        )
    node = _make_node(config, above) if above else config
    if name in node:
        del node[name]
    node[name] = ConfigDict(value)


def _set_field(config: ConfigDict, place: str, text: str) -> None:
    """Gives a field the value that a text stands for, by the field's type."""
    above, _, field = place.rpartition(".")
    node, flag = find_node(config, above), f"--config.{place}={text}"
    if node is None:
        raise ConfigError(f"{flag}: there is no config.{above}{suggest_field(config, place)}")
    if field not in node:
        near = suggest_field(config, place)
        raise ConfigError(f"{flag}: the config has no field {field!r}{near}")
    kinds = describe_fields(config, above)[field].kinds or (node.get_type(field),)
    try:
        value = None if text == "None" else read_value(text, kinds)
    except ValueError as error:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{flag}: it must be of type {wanted}") from error
    del node[field]  # a dictionary of ml_collections keeps the type of a value
    node[field] = value


def choose_components(config: ConfigDict, given: Mapping[str, str]) -> None:
    """Puts the components that a command line names, and the fields that it sets, into a config.

    A component that replaces another has its own defaults. It keeps the sources of the other and
    the fields of `KEPT`. The values themselves are set later.
    """
    for path in given:
        if match := re.fullmatch(rf"({STAGE}data\.mixture\.\w+)\.(\w+)", path):
            part, field = _make_node(config, match[1]), match[2]
            if field not in part and field in (*list_settable(LoaderSettings), *OF_PARTS):
                part[field] = None  # it takes that of config.data otherwise
    places = dict.fromkeys(path.rpartition(".")[0] for path in given)
    for place in sorted(places, key=lambda place: place.count(".")):
        table = find_table(place)
        if table is None:
            continue
        prefix = f"{place}."
        fields = {
            path.removeprefix(prefix): value
            for path, value in given.items()
            if path.startswith(prefix)
        }
        node = _make_node(config, place)
        name = fields.pop("name", None) or node.get("name")
        if not name:
            _check_mixture(config, place, fields)
            raise ConfigError(
                f"config.{place} is empty: its fields need its name, one of "
                f"{', '.join(sorted(table))}{advise(f'config.{place}', name=min(table))}"
            )
        target = lookup(name, table, f"config.{place}")
        _choose(node, name, target)
        _prepare_fields(config, place, fields, target)


def _check_mixture(config: ConfigDict, place: str, fields: Mapping[str, str]) -> None:
    """Raises a ConfigError if a source is meant for a part of a mixture."""
    data = f"{place.removesuffix('data.source')}data"
    parts = sorted((find_node(config, data) or {}).get("mixture") or {})
    if in_run(place) == "data.source" and parts:
        advice = advise(f"config.{data}.mixture.{parts[0]}.source", **fields)
        raise ConfigError(
            f"config.{place} is not used beside config.{data}.mixture, which has the parts "
            f"{', '.join(parts)}{advice}"
        )


def _make_node(config: ConfigDict, path: str) -> ConfigDict:
    """Returns the node at a path; creates it, and those above it, if they are missing."""
    node = config
    for field in path.split("."):
        if not isinstance(node.get(field), ConfigDict):
            if field in node:
                del node[field]
            node[field] = ConfigDict()
        node = node[field]
    return node


def _choose(node: ConfigDict, name: str, target: Any) -> None:
    """Turns a node into that of another component, if it is not already."""
    if node.get("name") != name:
        kept = {*source_fields(target), *set(KEPT).intersection(list_settable(target))}
        for field in [field for field in node if field not in kept]:
            del node[field]
        node.name = name
    fill_defaults(target, node)


def _prepare_fields(config: ConfigDict, place: str, fields: Mapping[str, str], target: Any) -> None:
    """Adds the fields that a command line sets, and that have no defaults, to a node."""
    node, where = _make_node(config, place), f"config.{place}"
    known, sources = list_settable(target), source_fields(target)
    for path, text in fields.items():
        field = path.partition(".")[0]
        if field in sources:
            _make_node(node, field)
        elif field not in known:
            check_settable(target, field, f"--{where}.{path}={text}")
            takes = [*sources, *known]
            near = suggest(field, takes) or suggest_field(config, f"{place}.{field}")
            raise ConfigError(
                f"--{where}.{path}={text}: {node['name']} has no field "
                f"{field!r}{near}; it takes: {', '.join(takes)}"
                + mend(where, field, text, ["name", *takes])
            )
        elif field not in node:
            node[field] = None
