"""The text of --help: every field of a config with its value, its type and a description."""

import textwrap
from typing import Any

from ml_collections import ConfigDict

from big_align.config.components.docstrings import read_summary
from big_align.config.fields import describe_fields
from big_align.config.places import find_table, find_target, list_nodes
from big_align.core.nodes import find_node

WIDTH, COLUMN = 100, 40  # characters per line, and the column where descriptions start
VALUE_MAX = 60


def format_fields(config: ConfigDict) -> str:
    """Formats all fields of a config, node by node, in the form --config.FIELD=VALUE."""
    nodes = [_format_node(config, place) for place in list_nodes(config)]
    return "\n\n".join(filter(None, nodes))


def format_lines(rows: list[tuple[str, str]]) -> str:
    """Formats names next to their descriptions, in two columns."""
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, WIDTH - COLUMN) or [""]
        if len(name) + 2 >= COLUMN:
            lines.append(f"  {name}")
        else:
            wrapped[0] = f"  {name:<{COLUMN - 2}}{wrapped[0]}"
            lines.append(wrapped.pop(0))
        lines += [" " * COLUMN + line for line in wrapped]
    return "\n".join(line.rstrip() for line in lines)


def _format_node(config: ConfigDict, place: str) -> str:
    node = find_node(config, place)
    fields = describe_fields(config, place)
    title = f"--config.{place}.FIELD".replace("..", ".")
    if find_table(place) is not None and node:
        # The chosen component describes itself; its name is a field like any other.
        summary = read_summary(find_target(config, place))
        title = textwrap.fill(f"{title}: {node.get('name')}. {summary}", WIDTH)
    rows = []
    for name, field in sorted(fields.items(), key=lambda pair: pair[0] != "name"):
        kinds = " or ".join(kind.__name__ for kind in field.kinds if kind is not Any) or "any"
        line = field.line.rstrip(".")
        if name == "name" and (table := find_table(place)) is not None:
            line = f"one of {', '.join(sorted(table))}, or module:Class"
        rows.append((f"{name}={_show(node[name])}", f"({kinds}) {line}"))
    return f"{title}\n{format_lines(rows)}" if rows else ""


def _show(value: Any) -> str:
    text = " ".join(str(value.to_dict() if isinstance(value, ConfigDict) else value).split())
    return text if len(text) <= VALUE_MAX else f"{text[: VALUE_MAX - 3]}..."
