"""The parts of the training data that a config names, and the classes that their labels refer to.

`config.data` is one part, or `config.data.mixture` names several; these take every field that they
do not set themselves from `config.data`.
"""

import dataclasses
import functools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from big_align.config.components.signatures import advise, list_settable, lookup, make, make_named
from big_align.config.components.source_flags import make_source
from big_align.config.components.tables import SOURCES
from big_align.core.errors import ConfigError, naming_field
from big_align.core.nodes import Node
from big_align.core.words import write_name
from big_align.data.derived.relabeled_source import join_labels
from big_align.data.derived.split_source import SplitSource
from big_align.data.examples import Source
from big_align.data.labels.classes import OWN_NAMES, ClassList, join_classes, read_classes
from big_align.data.loading.evaluation_loader import read_first_texts
from big_align.data.loading.settings import SHARED, WINDOW
from big_align.data.precomputed.shard_files import read_index
from big_align.data.tags.tag_extraction import TagExtractor, Tagger, tag_shapes
from big_align.data.tags.tag_list import TagList, read_tag_list

HELD_OUT = "held_out"  # name of a source: the examples that a part of the training data holds out


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the training data."""

    where: str  # its place in the config, for messages
    weight: float  # its fraction of every batch
    source: dict[str, Any]  # the config node of its source
    loader: dict[str, Any]  # the other fields, those of `LoaderSettings`
    classes: ClassList | None  # what its labels mean; None for pairs of image and text
    label_offset: int  # added to its labels: each class has one number everywhere
    precomputed: dict[str, str]  # folders of fields, by their names in the batch


def read_parts(config: Node) -> dict[str, Part]:
    """Reads the parts of the data and their class lists.

    Labels are offset in the order of the parts' names, which is the only order that a ConfigDict
    has; parts that name the same list have the same labels.
    """
    parts, offsets, end = {}, {}, 0
    for name, (where, node) in part_nodes(config).items():
        listed, source = node.pop("classes", None), node.pop("source", None) or {}
        weight = node.pop("weight", 1.0)
        node.pop("tags", None)  # all parts share one list, see `read_tags`
        precomputed = {k: path for k, path in (node.pop("precomputed", None) or {}).items() if path}
        classes, offset = None, 0
        if listed is not None:
            classes = _read_classes(listed, source, where)
            # A source's own names belong to its part; a class list is shared by all that name it.
            key = (listed, where) if listed == OWN_NAMES else listed
            if key not in offsets:
                offsets[key] = end
                end += len(classes)
            offset = offsets[key]
        parts[name] = Part(where, weight, source, node, classes, offset, precomputed)
    return parts


def own_classes(config: Node) -> dict[str, ClassList]:
    """Returns the classes that sources name themselves, by the places of their parts."""
    parts = read_parts(config)
    return {
        where.removeprefix("config."): parts[name].classes
        for name, (where, node) in part_nodes(config).items()
        if node.get("classes") == OWN_NAMES
    }


def part_nodes(config: Node) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the place and all fields of every part, by name and in the order of names."""
    data = _as_dict(config["data"])
    mixture = data.pop("mixture", None) or {}
    nodes = {"data": ("config.data", data)}
    if mixture:
        if data.pop("source", None):
            raise ConfigError(
                "config.data.source is not used beside config.data.mixture; write "
                "--config.data.source={} or --config.data.mixture={}"
            )
        data.pop("weight", None)
        nodes = {}
        for name, part in sorted(mixture.items()):
            where = f"config.data.mixture.{name}"
            if not isinstance(part, dict):
                raise ConfigError(f"{where} = {part!r} must be a node with a source and a weight")
            if "tags" in part:
                raise ConfigError(f"{where}.tags: all parts have the list of config.data.tags")
            if own := [field for field in SHARED if field in part]:
                raise ConfigError(f"{where}.{own[0]}: all parts share config.data.{own[0]}")
            nodes[name] = where, data | part
    for where, node in nodes.values():
        if not (node.get("source") or node.get("pipeline")):
            raise ConfigError(f"{where}.source is missing; it names where the examples are")
        if mixture and not isinstance(node.get("weight"), int | float):
            raise ConfigError(f"{where}.weight is missing; its fraction of every batch")
    return nodes


def open_source(part: Part) -> Source:
    """Opens what a part is trained on; labels are positions in its class list, by name."""
    source = make_source(part.source, f"{part.where}.source")
    if part.classes is not None:
        where = f"{part.where}.source"
        source = join_labels(source, part.classes, where, f"{part.where}.classes")
    hold_out = part.loader.get("hold_out")
    if not hold_out:
        return source
    for field, path in sorted(part.precomputed.items()):
        if read_index(Path(path), ()).get("made_by", {}).get("hold_out") != hold_out:
            raise ConfigError(
                f"{part.where}.hold_out = {hold_out:g} is not used beside {part.where}.precomputed"
                f".{field}, which is of all examples; write --{part.where}.hold_out=0"
            )
    return make(SplitSource, {}, part.where, source=source, hold_out=hold_out, held_out=False)


def open_evaluated(config: Node, node: Node, where: str) -> Source:
    """Opens the source of an evaluator, which may be what a part of the data holds out."""
    if node.get("name") != HELD_OUT:
        return make_source(node, where)
    place, part = find_held_out(config, node, where)
    source = make_source(part["source"], f"{place}.source")
    return make_named(SOURCES, node, where, source=source, hold_out=part["hold_out"])


def find_held_out(config: Node, node: Node, where: str) -> tuple[str, dict[str, Any]]:
    """Returns the place and fields of the part of the data that a source `held_out` refers to."""
    nodes, part = part_nodes(config), node.get("part") or "data"
    if part not in nodes:
        known = sorted(nodes)
        raise ConfigError(
            f"{where}.part = {node.get('part')!r} is no part of config.data.mixture"
            f"{advise(where, part=known[0])}, one of {', '.join(known)}"
        )
    place, fields = nodes[part]
    if not fields.get("hold_out"):
        told = advise(place, hold_out=0.05)
        raise ConfigError(f"{where} is what {place} holds out, which is nothing{told}")
    return place, fields


def check_first(config: Node, source: Source, node: Node, where: str, reads: Sequence[str]) -> None:
    """Checks that the first example whose texts can be read has what an evaluator `reads`."""
    if not reads or (texts := read_first_texts(source)) is None:
        return
    name, captions, labels = texts
    if node["name"] == HELD_OUT:
        where, part = find_held_out(config, node, where)
        where, node = f"{where}.source", part["source"]
    for field, found in (("caption", captions), ("label", labels)):
        if field in reads and not found:
            told = advise(where, **{field: field.upper()})
            if field not in list_settable(lookup(node["name"], SOURCES, where)):
                told = "; --config.evaluators.NAME={} leaves an evaluator out"
            raise ConfigError(f"{where} reads no {field}: {name} has none{told}")


def all_classes(parts: dict[str, Part]) -> ClassList | None:
    """Returns the classes of all parts in the order of their labels; None if there are none."""
    lists = {part.label_offset: part.classes for part in parts.values() if part.classes}
    return join_classes([lists[offset] for offset in sorted(lists)]) if lists else None


@dataclasses.dataclass(frozen=True)
class TagSettings:
    """`config.data.tags`."""

    path: str | None = None  # of the tag list; None if no tags are extracted
    max_tags: int = 16  # of an example's texts
    truth: bool = False  # whether the batch also has the tags of all captions of the image


def read_tag_settings(config: Node) -> TagSettings:
    """Reads the tag settings of the data."""
    return make(TagSettings, _as_dict(config["data"].get("tags") or {}), "config.data.tags")


def read_tags(config: Node, tokenizer: Any) -> TagList:
    """Reads the tag list for an objective that recognizes tags."""
    path = read_tag_settings(config).path
    if not path:
        raise ConfigError(
            f"config.data.tags.path is missing: config.objective.name = "
            f"{config['objective']['name']!r} needs the list that "
            "python -m big_align.tools.build_tags wrote"
        )
    with naming_field("config.data.tags.path"):
        tags = read_tag_list(path)
        tags.check_tokenizer(tokenizer)
    return tags


def build_tagger(config: Node) -> Tagger | None:
    """Builds the tagger that finds the tags of examples; None if no tag list is named."""
    settings = read_tag_settings(config)
    if not settings.path:
        return None
    with naming_field("config.data.tags.path"):
        names = read_tag_list(settings.path).names
    return Tagger(TagExtractor(names, settings.max_tags), settings.truth)


def fingerprint_tags(config: Node) -> str:
    """Returns a fingerprint of the meaning of tags; "" if there are none."""
    path = read_tag_settings(config).path
    return read_tag_list(path).fingerprint if path else ""


def tag_fields(config: Node) -> dict[str, tuple[int]]:
    """Returns the shapes of the tag fields of an example."""
    settings = read_tag_settings(config)
    return tag_shapes(settings.max_tags, settings.truth) if settings.path else {}


def fingerprint_parts(parts: dict[str, Part]) -> dict[str, Any]:
    """Returns what fixes the mixture and the meaning of labels and clusters, as JSON values."""
    classes = all_classes(parts)
    meaning = (classes.names, classes.descriptions, classes.ids) if classes else ()
    return {
        "parts": {part.where: part.weight for part in parts.values()},
        "classes": f"{zlib.crc32(json.dumps(meaning).encode()):08x}",
        "window": {part.where: part.loader.get("window") or WINDOW for part in parts.values()},
        "hold_out": {part.where: part.loader.get("hold_out") or 0.0 for part in parts.values()},
        "precomputed": {part.where: _fingerprint_precomputed(part) for part in parts.values()},
    }


def _fingerprint_precomputed(part: Part) -> dict[str, str]:
    """Returns fingerprints of precomputed folders, from what they say they were made from."""
    said = {name: json.dumps(read_index(Path(path), ())) for name, path in part.precomputed.items()}
    return {name: f"{zlib.crc32(text.encode()):08x}" for name, text in said.items()}


def _read_classes(listed: str, source: dict[str, Any], where: str) -> ClassList:
    if listed == OWN_NAMES and not source:
        raise ConfigError(f"{where}.classes = 'source', but no source is named: name a class list")
    if listed != OWN_NAMES:
        with naming_field(f"{where}.classes"):
            return read_classes(listed)
    names = _own_names(json.dumps(source, sort_keys=True), f"{where}.source")
    if names is None:
        raise ConfigError(
            f"{where}.classes = 'source', but a source {source.get('name')!r} has no names of its "
            "own: name a class list"
        )
    return ClassList.from_names([write_name(name) for name in names])


@functools.lru_cache(maxsize=8)
def _own_names(source: str, where: str) -> tuple[str, ...] | None:
    """Returns the source's own names, cached, since making a source may mean listing many files."""
    return make_named(SOURCES, json.loads(source), where).class_names


def _as_dict(node: Node) -> dict[str, Any]:
    return node.to_dict() if isinstance(node, ConfigDict) else dict(node)
