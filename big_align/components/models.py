"""Builds towers and dual encoders from the nodes of a config."""

import flax.linen as nn

from big_align.components.signatures import lookup, make, without
from big_align.components.tables import TOWERS
from big_align.errors import ConfigError
from big_align.models.dual_encoder import DualEncoder
from big_align.nodes import Node


def build_tower(node: Node, part: str, where: str) -> nn.Module:
    """Builds an "image" or "text" tower."""
    return make(lookup(node.get("name"), TOWERS[part], where), node, where)


def build_model(config: Node) -> DualEncoder:
    """Builds the dual encoder from its towers; without a text tower if its node is empty."""
    node = config["model"]
    towers = {}
    for part in TOWERS:
        where = f"config.model.{part}"
        if part not in node or (part == "image" and not node[part]):
            raise ConfigError(f"{where} is missing; known: {', '.join(sorted(TOWERS[part]))}")
        towers[part] = build_tower(node[part], part, where) if node[part] else None
    return make(DualEncoder, without(node, *towers), "config.model", **towers)
