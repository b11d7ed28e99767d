"""Fills a config with all that its components leave at their defaults."""

import inspect
import typing
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
    --config.field=value reaches all of it.

    Returns:
      The config, changed in place.
    """
    parts = [config.data, *(config.data.get("mixture") or {}).values()]
    components = [
        (config, "tokenizer", TOKENIZERS),
        (config, "objective", OBJECTIVES),
        *((node, "source", SOURCES) for node in parts),
        *((config.model, part, TOWERS[part]) for part in TOWERS),
        *((config.evaluators, name, EVALUATORS) for name in config.evaluators),
    ]
    for name, node in config.evaluators.items():
        fields = source_fields(lookup(node.get("name"), EVALUATORS, f"evaluators.{name}"))
        components += [(node, field, SOURCES) for field in fields if node.get(field)]
    for parent, field, table in components:
        if parent.get(field):
            fill_defaults(lookup(parent[field].get("name"), table, field), parent[field])
    for target, node in (
        (LoaderSettings, config.data),
        (DualEncoder, config.model),
        (Checkpointer, config.checkpoint),
        (MixedLabels, config.mixing),
        (optimizers.make_schedule, config.schedule),
        (optimizers.make_optimizer, config.optimizer),
    ):
        fill_defaults(target, node)
    return config


def source_fields(target: Any) -> list[str]:
    """Returns the parameters of a component that are sources: config nodes of their own."""
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    return [name for name, hint in hints.items() if Source in (hint, *typing.get_args(hint))]
