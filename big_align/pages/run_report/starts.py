"""How the processes of a run were started: one line each in `WORKDIR/starts.jsonl`."""

import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

from big_align.training.logs.line_files import append_line, keep_lines, read_lines

FILE = "starts.jsonl"
ABSENT = object()
"""What stands for the value of a field that is not there."""
PACKAGES = ("big_align", "jax", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow")


def compare_configs(
    before: Mapping[str, Any], after: Mapping[str, Any], where: str = ""
) -> dict[str, list[Any]]:
    """Returns the fields that differ between two configs, with both values; None if one lacks it.

    A whole node that only one config has is one entry. `where` is the place of both within theirs.
    """
    changes: dict[str, list[Any]] = {}
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        place = f"{where}.{name}".lstrip(".")
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            changes |= compare_configs(one, other, place)
        elif _plain(one) != _plain(other):
            changes[place] = [one, other]
    return changes


def find_field(config: Mapping[str, Any], place: str) -> Any:
    """Returns the value of a field of a config; `ABSENT` if it has no such field."""
    node: Any = config
    for name in place.split("."):
        node = node.get(name, ABSENT) if isinstance(node, Mapping) else ABSENT
    return node


def _plain(value: Any) -> Any:
    """Returns a value as JSON returns it, since configs from files have lists instead of tuples."""
    return json.loads(json.dumps(value, default=str))


def describe_machine(devices: int, kind: str, processes: int) -> dict[str, Any]:
    """Returns versions and devices, which are counted over all processes."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    device = {"count": devices, "kind": kind, "processes": processes}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"versions": versions, "devices": device, "machine": machine}


def format_devices(devices: Mapping[str, Any]) -> str:
    """Formats what `describe_machine` returns, as in "16 x NVIDIA H200 of 2 processes"."""
    count, processes = devices.get("count", 1), devices.get("processes") or 1
    several = f" of {processes} processes" if processes > 1 else ""
    return f"{count} x {devices.get('kind', '')}{several}"


def record_start(workdir: str, facts: Mapping[str, Any]) -> None:
    """Appends a record of a process that starts or continues a run."""
    path = pathlib.Path(workdir) / FILE
    keep_lines(path, lambda _: True)
    append_line(path, {**facts, "folder": os.getcwd()})


def find_folder(workdir: str) -> str:
    """Returns the current folder of a run's last start; "" if that is not known."""
    folder = ""
    for start in read_lines(pathlib.Path(workdir) / FILE):
        folder = start.get("folder", "")
    return folder if isinstance(folder, str) else ""
