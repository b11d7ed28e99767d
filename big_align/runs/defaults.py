"""Fills a config with the defaults of its components."""

from ml_collections import ConfigDict

from big_align.components.signatures import fill_defaults
from big_align.configuration.places import GROUPS, find_node, find_target, list_components


def complete_config(config: ConfigDict) -> ConfigDict:
    """Adds every argument that the components of a config leave at its default.

    A config file calls this last, so that the config shows everything that can be set, and
    --config.field=value can set all of it. Empty evaluators and parts of a mixture are removed.

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
    return config
