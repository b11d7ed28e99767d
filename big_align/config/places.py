"""The places in a config that hold components or groups of settings, and what each takes."""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from big_align.config.components import from_init
from big_align.config.components.signatures import lookup
from big_align.config.components.tables import EVALUATORS, OBJECTIVES, SOURCES, TOKENIZERS, TOWERS
from big_align.core.nodes import find_node
from big_align.data.examples import Source
from big_align.data.loading.settings import CachedFeatures, LoaderSettings
from big_align.models.dual_encoder import DualEncoder
from big_align.objectives.parts.mixing import MixedLabels
from big_align.parallel.meshes import make_mesh
from big_align.training import optimizers
from big_align.training.logs.trackers import open_trackers
from big_align.training.saving.checkpoint import Checkpointer

GROUPS = {
    "mesh": make_mesh,
    "data": LoaderSettings,
    "model": DualEncoder,
    "mixing": MixedLabels,
    "schedule": optimizers.make_schedule,
    "optimizer": optimizers.make_optimizer,
    "checkpoint": Checkpointer,
    "log": open_trackers,
    "cached_features": CachedFeatures,
}
"""Nodes without a table of names, and what takes their fields."""


def list_components(config: ConfigDict) -> list[str]:
    """Returns the places in a config that hold components, as in "data.source"."""
    mixture = (config.get("data") or {}).get("mixture") or {}
    paths = ["tokenizer", "objective", "data.source", *(f"model.{part}" for part in TOWERS)]
    paths += [f"data.mixture.{name}.source" for name in mixture]
    for name, node in (config.get("evaluators") or {}).items():
        where = f"evaluators.{name}"
        target = lookup(node.get("name"), EVALUATORS, f"config.{where}")
        paths += [where, *(f"{where}.{field}" for field in source_fields(target))]
    return paths


def find_table(path: str) -> Mapping[str, str] | None:
    """Returns the names that the component at a place may have; None if there is no component."""
    match in_run(path).split("."):
        case ["tokenizer"]:
            return TOKENIZERS | from_init.TOKENIZER
        case ["objective"]:
            return OBJECTIVES
        case ["model", part] if part in TOWERS:
            return TOWERS[part] | from_init.TOWER
        case ["evaluators", _]:
            return EVALUATORS
        case ["data", "source"] | ["data", "mixture", _, "source"] | ["evaluators", _, _]:
            return SOURCES
    return None


def find_target(config: ConfigDict, path: str) -> Any:
    """Returns the callable that takes the fields of a node; None for a node of the run itself."""
    place = in_run(path)
    if place in GROUPS:
        return GROUPS[place]
    if re.fullmatch(r"data\.mixture\.[^.]+", place):
        return LoaderSettings
    node, table = find_node(config, path), find_table(path)
    return lookup(node.get("name"), table, f"config.{path}") if node and table else None


def in_run(path: str) -> str:
    """Returns a place without the prefix of first runs, whose configs are complete too."""
    return re.sub(r"^(first\.)+|^first$", "", path)


def list_nodes(config: ConfigDict, path: str = "") -> Iterator[str]:
    """Yields the place of every node, each before the nodes in it; "" is the whole config."""
    yield path
    for name, value in find_node(config, path).items():
        if isinstance(value, ConfigDict):
            yield from list_nodes(config, f"{path}.{name}".lstrip("."))


def source_fields(target: Any) -> list[str]:
    """Returns the parameters of a component that are sources, which are config nodes."""
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    return [name for name, hint in hints.items() if Source in (hint, *typing.get_args(hint))]
