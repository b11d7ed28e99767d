"""What a config is made of, and how a component marks what no config sets."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from ml_collections import ConfigDict

Node = ConfigDict | Mapping[str, Any]
"""A part of a config."""

T = TypeVar("T")
GIVEN = object()
Given = Annotated[T, GIVEN]
"""Marks a parameter, `seed: Given[int]`, that the program hands over and no config sets.

A parameter whose type no config can hold, such as a mesh, needs no mark.
"""
