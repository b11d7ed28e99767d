"""What comes after a run: the commands that classify, search and export with its model."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from big_align.config.components.source_flags import write_source_flags
from big_align.core.nodes import Node
from big_align.runs import dataset

TOOL = "python -m big_align.tools"


def list_commands(config: Node, workdir: str, formats: Mapping[str, str]) -> Iterator[str]:
    """Yields the commands that can follow a run.

    Args:
      config: of the run.
      workdir: its folder.
      formats: as `weights.api.list_formats` returns them for its model; empty for no model.
    """
    if not formats:
        return
    folder = shlex.quote(workdir)
    if (config["model"].get("text") or {}).get("name"):
        yield f"{TOOL}.classify --model={folder} --names='a dog,a cat' PHOTO.jpg"
    node = next(iter(dataset.part_nodes(config).values()))[1]
    if source := node.get("source"):
        index = shlex.quote(f"{workdir.rstrip('/')}/index")
        yield f"{TOOL}.index --model={folder} {write_source_flags(source)} --output={index}"
        yield f"{TOOL}.serve --model={folder} --index={index}"
    preferred = ("transformers", "open_clip", "big_align")
    format = next(name for name in preferred if not formats.get(name, ""))
    yield f"{TOOL}.convert --input={folder} --output=exported --format={format}"


def tell_next(config: Any, workdir: str, formats: Mapping[str, str]) -> str:
    """Writes what can follow, for the end of a run; "" if nothing can."""
    commands = list(list_commands(config, workdir, formats))
    return "\n".join(["next:", *(f"  {command}" for command in commands)]) if commands else ""
