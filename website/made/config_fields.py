"""Every config field with its type, default and meaning, and the configs that set it."""

import collections
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from big_align.config import config_files, fields, overrides, places
from big_align.config.components import tables
from big_align.config.components.docstrings import read_arguments, read_summary
from big_align.config.components.signatures import list_settable, lookup
from big_align.configs import common
from big_align.core.errors import UserError
from big_align.core.nodes import find_node

TABLES = {
    "objectives": ("Objectives", "objective", tables.OBJECTIVES),
    "image_towers": ("Image towers", "model.image", tables.IMAGE_TOWERS),
    "text_towers": ("Text towers", "model.text", tables.TEXT_TOWERS),
    "tokenizers": ("Tokenizers", "tokenizer", tables.TOKENIZERS),
    "sources": ("Sources", "data.source", tables.SOURCES),
    "evaluators": ("Evaluators", "evaluators.NAME", tables.EVALUATORS),
}
"""Pages of components: their title, where a config has them, and their names there."""
COLUMNS = ("field", "type", "default", "what it is for", "configs that set another value")
NAMED = 6  # configs that a field names at most

Uses = dict[tuple[Any, str], list[str]]


def make_pages() -> dict[str, str]:
    """Returns the page of the run's own fields, and one for each kind of component."""
    uses = find_uses()
    pages = {"reference/config/run.md": write_run(uses)}
    for page, (title, place, table) in TABLES.items():
        parts = [f"# {title}\n\n`config.{place}.name` names one of these, or a `module:Class`."]
        for name in sorted(table):
            target = lookup(name, table, f"config.{place}")
            parts.append(f"## {name}\n\n{read_summary(target)}\n\n{write_component(target, uses)}")
        pages[f"reference/config/{page}.md"] = "\n\n".join(parts) + "\n"
    return pages


def find_uses() -> Uses:
    """Returns which configs give a field another value than its default, by component and field."""
    uses: Uses = collections.defaultdict(list)
    for name in sorted(config_files.list_packaged()):
        try:
            config = overrides.load_config(name)
        except (UserError, ValueError):  # it is nothing without its argument
            continue
        for key, value in list_values(config):
            if value != find_default(*key) and name not in uses[key]:
                uses[key].append(name)
    return uses


def list_values(config: ConfigDict) -> Iterator[tuple[tuple[Any, str], Any]]:
    """Yields the fields of a config, by their component, or of the run by their place."""
    for place in places.list_nodes(config):
        target = places.find_target(config, place)
        settable = list_settable(target) if target is not None else {}
        for field, value in find_node(config, place).items():
            own = re.sub(
                r"^(data\.mixture)\.\w+", r"\1.*", places.in_run(f"{place}.{field}".strip("."))
            )
            if field in settable:
                yield (target, field), value
            elif own in fields.OWN:
                yield (None, own), value


def find_default(target: Any, field: str) -> Any:
    """Returns the value that a field has if no config sets it; None if it is not there then."""
    if target is not None:
        return list_settable(target)[field].default
    node, _, name = field.rpartition(".")
    try:
        return find_node(common.get_base(), node).get(name)
    except (KeyError, AttributeError):
        return None


def write_component(target: Any, uses: Uses) -> str:
    """Writes the table of what a component takes."""
    lines, rows = read_arguments(target), []
    for name, parameter in list_settable(target).items():
        default = "required" if parameter.required else code(parameter.default)
        rows.append((f"`{name}`", write_type(parameter.hint), default, lines.get(name, ""),
                     write_uses(uses.get((target, name), []))))  # fmt: skip
    return write_table(rows) if rows else "It has no fields."


def write_run(uses: Uses) -> str:
    """Writes the fields that belong to no component with a name."""
    rows = []
    for place, (kind, line) in fields.OWN.items():
        cells = f"`{place}`", f"`{kind.__name__}`", code(find_default(None, place)), line
        rows.append((*cells, write_uses(uses.get((None, place), []))))
    parts = [f"# The run\n\nFields of the run itself, and of its parts.\n\n{write_table(rows)}"]
    for place, target in places.GROUPS.items():
        parts.append(f"## {place}\n\n{read_summary(target)}\n\n{write_component(target, uses)}")
    return "\n\n".join(parts) + "\n"


def write_type(hint: Any) -> str:
    """Writes a type as people read it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(write_type, typing.get_args(hint)))
    plain = isinstance(hint, type) and not typing.get_args(hint)
    name = hint.__name__ if plain else str(hint).replace("typing.", "")
    return {"NoneType": "`None`", "Any": "any"}.get(name, code(name))


def code(value: Any) -> str:
    """Writes a value as code in a cell of a table."""
    text = str(value.to_dict() if isinstance(value, ConfigDict) else value).replace("|", "\\|")
    return f"`{text}`" if text else '`""`'


def write_uses(names: list[str]) -> str:
    """Writes which configs use a field, or how many."""
    return f"{len(names)} configs" if len(names) > NAMED else ", ".join(f"`{x}`" for x in names)


def write_table(rows: list[tuple[str, ...]]) -> str:
    """Writes a table of Markdown."""

    def lines() -> Iterator[str]:
        for row in (COLUMNS, ("---",) * len(COLUMNS), *rows):
            yield f"| {' | '.join(row)} |"

    return "\n".join(lines())
