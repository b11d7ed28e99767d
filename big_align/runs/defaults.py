"""Fills a config with all that its components leave at their defaults."""

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from big_align.components.signatures import fill_defaults, lookup
from big_align.components.tables import EVALUATORS, OBJECTIVES, SOURCES, TOKENIZERS, TOWERS
from big_align.data.examples import Source
from big_align.data.loading.settings import LoaderSettings
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.mixing import MixedLabels
from big_align.training import optimizers
from big_align.training.checkpoint import Checkpointer


def complete_config(config: ConfigDict) -> ConfigDict:
    """Adds every argument that the components of a config leave at its default.

    A config file calls it last: what it returns shows all there is to set, and
    --config.field=value reaches all of it. Evaluators and parts of a mixture that are empty are
    left out.

    Returns:
      The config, changed in place.
    """
    for nodes in (config.get("evaluators"), (config.get("data") or {}).get("mixture")):
        for name in [name for name, node in (nodes or {}).items() if not node]:
            del nodes[name]
    for path in list_components(config):
        node, table = find_node(config, path), find_table(path)
        if node and table is not None:
            fill_defaults(lookup(node.get("name"), table, f"config.{path}"), node)
    for target, field in (
        (LoaderSettings, "data"),
        (DualEncoder, "model"),
        (Checkpointer, "checkpoint"),
        (MixedLabels, "mixing"),
        (optimizers.make_schedule, "schedule"),
        (optimizers.make_optimizer, "optimizer"),
    ):
        if field in config:
            fill_defaults(target, config[field])
    return config


def list_components(config: ConfigDict) -> list[str]:
    """Returns the places of a config that hold components, as in "data.source"."""
    mixture = (config.get("data") or {}).get("mixture") or {}
    paths = ["tokenizer", "objective", "data.source", *(f"model.{part}" for part in TOWERS)]
    paths += [f"data.mixture.{name}.source" for name in mixture]
    for name, node in (config.get("evaluators") or {}).items():
        where = f"evaluators.{name}"
        target = lookup(node.get("name"), EVALUATORS, f"config.{where}")
        paths += [where, *(f"{where}.{field}" for field in source_fields(target))]
    return paths


def find_table(path: str) -> Mapping[str, str] | None:
    """Returns the names that the component at a place may have; None where there is none."""
    match path.split("."):
        case ["tokenizer"]:
            return TOKENIZERS
        case ["objective"]:
            return OBJECTIVES
        case ["model", part] if part in TOWERS:
            return TOWERS[part]
        case ["evaluators", _]:
            return EVALUATORS
        case ["data", "source"] | ["data", "mixture", _, "source"] | ["evaluators", _, _]:
            return SOURCES
    return None


def find_node(config: ConfigDict, path: str) -> ConfigDict | None:
    """Returns the node at a place; None where the config has none."""
    node = config
    for field in path.split("."):
        node = node.get(field) if isinstance(node, ConfigDict) else None
    return node if isinstance(node, ConfigDict) else None


def source_fields(target: Any) -> list[str]:
    """Returns the parameters of a component that are sources: config nodes of their own."""
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    return [name for name, hint in hints.items() if Source in (hint, *typing.get_args(hint))]
