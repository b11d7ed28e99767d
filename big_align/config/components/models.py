"""Builds towers and dual encoders from the nodes of a config."""

from collections.abc import Iterable

import flax.linen as nn

from big_align.config.components.signatures import advise, lookup, make, without
from big_align.config.components.tables import TOWERS
from big_align.core.errors import ConfigError, check_members
from big_align.core.nodes import Node
from big_align.models.dual_encoder import DualEncoder
from big_align.models.parts.tower import TowerOfImages, TowerOfTexts

SIZES = (
    *("width", "depth", "depths", "heads", "mlp_dim", "vocab_size", "max_length", "window"),
    *("stem_width", "stem_stride", "group_size", "embedding_dim"),
)
"""Fields of the towers here, and of the model, whose numbers are above 0."""
RATES = ("dropout", "drop_path", "image_dropout", "text_dropout")
"""Fields that are probabilities to drop something."""


KINDS = {"image": TowerOfImages, "text": TowerOfTexts}


def build_tower(node: Node, part: str, where: str) -> nn.Module:
    """Builds an "image" or "text" tower."""
    tower = make(lookup(node.get("name"), TOWERS[part], where), node, where)
    check_members(tower, KINDS[part], where)
    if node["name"] in TOWERS[part]:  # what the fields of others mean is not known
        check_numbers(node, where)
    return tower


def check_numbers(node: Node, where: str) -> None:
    """Checks the sizes and rates of a tower or a model, whose own errors would not name them."""
    for field in [field for field in SIZES if field in node]:
        several = isinstance(node[field], Iterable)
        for value in node[field] if several else [node[field]]:
            if value is not None and value <= 0:
                told = f"has {value}, and all" if several else f"= {value}"
                raise ConfigError(f"{where}.{field} {told} must be above 0")
    for field in RATES:
        if not 0 <= (node.get(field) or 0) < 1:
            told = advise(where, **{field: 0.1})
            raise ConfigError(f"{where}.{field} = {node[field]} is no rate in [0, 1){told}")


def build_model(config: Node) -> DualEncoder:
    """Builds the dual encoder from its towers; without a text tower if its node is empty."""
    node = config["model"]
    towers = {}
    for part in TOWERS:
        where = f"config.model.{part}"
        if part not in node or (part == "image" and not node[part]):
            raise ConfigError(f"{where} is missing; known: {', '.join(sorted(TOWERS[part]))}")
        towers[part] = build_tower(node[part], part, where) if node[part] else None
    model = make(DualEncoder, without(node, *towers), "config.model", **towers)
    check_numbers(node, "config.model")
    return model
