"""Fills a config with the defaults of its components."""

import copy

from ml_collections import ConfigDict

from big_align.config.components.signatures import fill_defaults
from big_align.config.places import GROUPS, find_target, list_components
from big_align.config.stages import FIRST
from big_align.core.nodes import find_node


def complete_config(config: ConfigDict) -> ConfigDict:
    """Adds every argument that the components of a config leave at its default.

    A config file calls this last, so that the config shows everything that can be set, and
    --config.field=value can set all of it. Empty evaluators and parts of a mixture are removed. A
    node that stands in several places, such as the source of two evaluators, is copied: a flag
    changes the field that it names and no other.

    Returns:
      The config, changed in place.
    """
    for nodes in (config.get("evaluators"), (config.get("data") or {}).get("mixture")):
        for name in [name for name, node in (nodes or {}).items() if not node]:
            del nodes[name]
    for path in list_components(config):
        target = find_target(config, path)
        if target is not None:
            fill_defaults(target, find_node(config, path))
    for field, target in GROUPS.items():
        if field in config:
            fill_defaults(target, config[field])
    if config.get(FIRST):
        complete_config(config[FIRST])
    _separate_nodes(config, set())
    return config


def _separate_nodes(node: ConfigDict, seen: set[int]) -> None:
    """Replaces nodes that have been seen before by copies, in place."""
    for name, value in node.items():
        if isinstance(value, ConfigDict):
            if id(value) in seen:
                node[name] = value = copy.deepcopy(value)
            seen.add(id(value))
            _separate_nodes(value, seen)
