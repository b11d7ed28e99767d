"""Choosing components on a command line: --config.objective.name=siglip --config.objective.bias=-5.

The flags of a config take their types from the config that a file returns. So the components that a
command line names are first put into that config, with all of their fields.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_dict
from ml_collections.config_flags.config_flags import ConfigFileFlagParser

from big_align.components.signatures import (
    advise,
    choose_kind,
    fill_defaults,
    list_kinds,
    list_settable,
    lookup,
    mend,
)
from big_align.configuration.config_files import find_config, read_config
from big_align.configuration.places import find_table, source_fields
from big_align.data.loading.settings import LoaderSettings
from big_align.errors import ConfigError, UserError, put_in_a_line, suggest

KEPT = ("length", "max_length", "transform", "vocab_size")
"""Fields that a component takes over from the one that it replaces, as it does with sources.

They say how it fits its surroundings; any other field may mean something else in the new component,
even under the same name.
"""


SEVERAL = {tuple, list, Sequence}
"""Types of fields that take several values, as in --config.data.source.path="['a', 'b']"."""


class ConfigParser(ConfigFileFlagParser):
    """Loads a config file, and puts the components that a command line names into the config.

    Args:
      argv: the command line.

    Attributes:
      argv: what is left for the flags: without --config.NODE={} if other flags fill the node, and
        with only the last --config.FIELD=VALUE of each field, since flags of tuples would join them
        all, and that only if it is not None.
    """

    def __init__(self, argv: Sequence[str]):
        super().__init__("config", lock_config=False)
        given = read_overrides(argv)
        self._emptied = [
            path
            for path, text in given.items()
            if text == "{}" and any(other.startswith(f"{path}.") for other in given)
        ]
        # Flags of texts and numbers cannot mean None: those that do are set with the config.
        self._unset = [path for path, text in given.items() if text == "None"]
        words = [f"config.{path}={{}}" for path in self._emptied]
        words += [f"config.{path}=None" for path in self._unset]
        done = {f"{dashes}{word}" for word in words for dashes in ("-", "--")}
        self.argv = [word for word in _keep_last(_join_none(argv)) if word not in done]
        self._given = {path: text for path, text in given.items() if path not in self._emptied}

    def parse(self, path: str) -> Any:
        """Loads the config that `path` names.

        Raises the errors of `find_config`, `read_config` and `choose_components`, and a UserError
        if a file does not make a config.
        """
        found = find_config(path)
        config = read_config(found) if found.endswith(".json") else self._run_file(found)
        for emptied in self._emptied:
            above, _, field = emptied.rpartition(".")
            node = _make_node(config, above) if above else config
            node[field] = ConfigDict()
        choose_components(config, self._given)
        for unset in self._unset:
            _unset_field(config, unset)
        config.lock()
        return config

    def _run_file(self, path: str) -> ConfigDict:
        """Returns what `get_config` of a file returns; raises a UserError if it is no config."""
        module = f"{self.name}_config"
        sys.modules.pop(module, None)  # else a file would also have the names of the one before
        try:
            config = super().parse(path)
            getattr(config, "is_locked", None)  # raises what kept the file from being read
        except AttributeError as error:
            if "has no attribute" not in (text := str(error)):  # ConfigDict's, about a field
                raise
            told = "it defines no get_config()" if "'get_config'" in text else text
            raise UserError(f"--config={path}: {put_in_a_line(told)}") from error
        if not isinstance(config, ConfigDict):
            raise UserError(
                f"--config={path}: get_config() returns {put_in_a_line(repr(config))}, which is no "
                "ml_collections.ConfigDict"
            )
        return config


def _unset_field(config: ConfigDict, path: str) -> None:
    """Sets a field to None, whatever its type; raises a ConfigError if there is no such field."""
    above, _, field = path.rpartition(".")
    node = config
    for name in filter(None, above.split(".")):
        node = node.get(name)
        if not isinstance(node, ConfigDict):
            raise ConfigError(f"--config.{path}=None: there is no config.{above}")
    if field not in node:
        told = suggest(field, list(node))
        raise ConfigError(f"--config.{path}=None: there is no field {field!r}{told}")
    if isinstance(value := node[field], ConfigDict):
        raise ConfigError(f"--config.{path}=None: it has fields; --config.{path}={{}} empties it")
    if value is not None:  # a field of no type could not have a flag
        del node[field]
        node[field] = config_dict.placeholder(type(value))


def read_overrides(argv: Sequence[str]) -> dict[str, str]:
    """Reads --config.FIELD=VALUE, or --config.FIELD VALUE, into a mapping from field to value.

    Raises:
      ConfigError: what stands for a field cannot be the name of one.
    """
    argv = flags.FLAGS.read_flags_from_files(list(argv), force_gnu=False)
    given = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        _check_name(word)
        match = re.fullmatch(r"--?config\.([\w.]+)(?:=(.*))?", word, re.DOTALL)
        if match:
            given[match[1]] = following if match[2] is None else match[2]
    return given


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


def _join_none(argv: Sequence[str]) -> list[str]:
    """Writes --config.FIELD None as one word."""
    words = []
    for word in argv:
        if word == "None" and words and re.fullmatch(r"--?config\.[\w.]+", words[-1]):
            words[-1] += "=None"
        else:
            words.append(word)
    return words


def _keep_last(argv: Sequence[str]) -> list[str]:
    """Drops each --config.FIELD=VALUE that a later one overrides."""
    fields = [re.match(r"--?(config\.[\w.]+)=", word) for word in argv]
    last = {match[1]: number for number, match in enumerate(fields) if match}
    return [
        word
        for number, (word, match) in enumerate(zip(argv, fields, strict=True))
        if match is None or last[match[1]] == number
    ]


def choose_components(config: ConfigDict, given: Mapping[str, str]) -> None:
    """Puts the components that a command line names, and the fields that it sets, into a config.

    A component that replaces another has its own defaults. It keeps the sources of the other and
    the fields of `KEPT`.

    Args:
      config: changed in place; the values themselves are left to the flags.
      given: values as text, by field, as in {"data.source.name": "csv"}.

    Raises:
      ConfigError: a name is unknown, or a component lacks a field that the command line sets.
    """
    for path in given:
        if re.fullmatch(r"evaluators\.\w+|data\.mixture\.\w+", path):
            _make_node(config, path)  # a new one, which the flag itself fills
        elif match := re.fullmatch(r"(data\.mixture\.\w+)\.(\w+)", path):
            if match[2] == "source":
                _make_node(config, path)
            _prepare_part(_make_node(config, match[1]), match[2])
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
        if place in given:  # the whole node is given too; the flags know the order
            continue
        node = _make_node(config, place)
        name = fields.pop("name", None) or node.get("name")
        if not name:
            _check_mixture(config, given, place, fields)
            raise ConfigError(
                f"config.{place} is empty: its fields need its name, one of "
                f"{', '.join(sorted(table))}{advise(f'config.{place}', name=min(table))}"
            )
        _choose(node, name, lookup(name, table, f"config.{place}"))
        _prepare_fields(node, fields, table, f"config.{place}")


def _check_mixture(
    config: ConfigDict, given: Mapping[str, str], place: str, fields: Mapping[str, str]
) -> None:
    """Raises a ConfigError if a source is meant for a part of a mixture."""
    parts = sorted((config.get("data") or {}).get("mixture") or {})
    if place == "data.source" and parts and "data.mixture" not in given:
        first = advise(f"config.data.mixture.{parts[0]}.source", **fields)
        raise ConfigError(
            f"config.data.source is not used beside config.data.mixture, which has the parts "
            f"{', '.join(parts)}{first}"
        )


def _prepare_part(part: ConfigDict, field: str) -> None:
    """Adds a field to a part of a mixture that takes it from config.data otherwise."""
    kinds = {name: choose_kind(x.hint) for name, x in list_settable(LoaderSettings).items()}
    kinds |= {"classes": str, "weight": float}
    if field in kinds and field not in part:
        part[field] = config_dict.placeholder(kinds[field])


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


def _prepare_fields(
    node: ConfigDict, fields: Mapping[str, str], table: Mapping[str, str], where: str
) -> None:
    """Gives each field that a command line sets the type with which it is parsed."""
    target = lookup(node["name"], table, where)
    known, sources = list_settable(target), source_fields(target)
    for path, text in fields.items():
        field = path.partition(".")[0]
        if field in sources:
            _make_node(node, field)
            continue
        if field not in known:
            takes = [*sources, *known]
            raise ConfigError(
                f"--{where}.{path}={text}: {node['name']} has no field "
                f"{field!r}{suggest(field, takes)}; it takes: {', '.join(takes)}"
                + mend(where, field, text, ["name", *takes])
            )
        if "." in path:
            continue
        kinds = list_kinds(known[field].hint)
        if str in kinds and SEVERAL.intersection(kinds):
            if field in node:
                del node[field]
            several = text.strip().startswith(("(", "["))  # a Python list or tuple
            node[field] = config_dict.placeholder(object if several else str)
        elif field not in node:
            node[field] = config_dict.placeholder(choose_kind(known[field].hint))
