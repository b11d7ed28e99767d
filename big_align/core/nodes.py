"""What a config is made of, and how a component marks parameters that no config sets."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from ml_collections import ConfigDict

Node = ConfigDict | Mapping[str, Any]  # a part of a config

T = TypeVar("T")
GIVEN = object()
Given = Annotated[T, GIVEN]
"""Marks a parameter, as in `seed: Given[int]`, that the program supplies and no config sets.

A parameter whose type no config can hold, such as a mesh, needs no mark.
"""


def find_node(config: Node, path: str) -> Any:
    """Returns the node at a place of a config, "" for the whole of it; None if there is none."""
    node: Any = config
    for field in path.split(".") if path else ():
        node = node.get(field) if isinstance(node, (ConfigDict, Mapping)) else None
    return node if isinstance(node, (ConfigDict, Mapping)) else None
