"""What a model computes otherwise than the one whose weights it takes over."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from big_align.config.components.from_init import FROM_INIT
from big_align.config.components.signatures import advise, list_settable, lookup, make_named
from big_align.config.components.tables import TOKENIZERS, TOWERS
from big_align.core.errors import ConfigError, UserError, suggest
from big_align.core.nodes import Node
from big_align.models.dual_encoder import DualEncoder
from big_align.weights.formats.architecture import Size, shape_inputs
from big_align.weights.formats.pretrained import Pretrained

EXECUTION = ("dtype", "remat", "scan", "attention", "keep", "keep_by")
"""Settings of a tower for how it is computed, or for how little of an input, not what."""

TRAINING = ("dropout", "drop_path", "group_size", "momentum", "fixed_statistics")
"""Settings that count in training alone."""

COLORS = ("image_mean", "image_std")
PROJECTIONS = ("embedding_dim", "image_projection", "text_projection", "projection_bias")


class Difference(NamedTuple):
    """A setting that differs between a model and the one whose weights it takes."""

    field: str
    ours: Any
    theirs: Any
    shown: bool  # whether shapes of arrays differ with it


def tower_of(source: Pretrained, part: str) -> nn.Module | None:
    """Returns the "image" or "text" tower of a model; None if it has none."""
    if source.kind == "dual":
        return getattr(source.model, part)
    return source.model if source.kind == part else None


def find_colors(source: Pretrained) -> dict[str, tuple[float, ...]]:
    """Returns mean and deviation of the colors of a model's images, if it says them."""
    if source.kind == "dual":
        return {name: tuple(getattr(source.model, name)) for name in COLORS}
    seen = source.preprocessing if source.kind == "image" else None
    return {"image_mean": seen.mean, "image_std": seen.std} if seen else {}


def compare_towers(ours: nn.Module, theirs: nn.Module, size: Size) -> Iterator[Difference]:
    """Yields the settings of two towers that make them compute different features.

    If they are of different classes, there is nothing to say. `size` is None for towers of texts.
    """
    if type(ours) is not type(theirs):
        return
    here, there = _list_settings(ours), _list_settings(theirs)
    for field in here:
        if field in there and not _agree(here[field], there[field]):
            shown = _is_shown(ours, field, there[field], size)
            yield Difference(field, here[field], there[field], shown)


def _list_settings(tower: nn.Module) -> dict[str, Any]:
    """Returns what a tower computes, with what its variant decides."""
    fields = [field.name for field in dataclasses.fields(tower)]
    apart = {"parent", "name", "variant", *EXECUTION, *TRAINING}
    given = {name: getattr(tower, name) for name in fields}
    sizes = {name: getattr(tower, name) for name in ("patch",) if hasattr(tower, name)}
    whole = given | getattr(tower, "resolved", {}) | sizes
    return {name: value for name, value in whole.items() if name not in apart}


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(_agree, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _is_shown(tower: nn.Module, field: str, value: Any, size: Size) -> bool:
    """Returns whether another value of a field gives a tower other arrays."""
    inputs = shape_inputs("text" if size is None else "image", size)

    def describe(tower: nn.Module) -> Any:
        shapes = nn.meta.unbox(jax.eval_shape(tower.init, jax.random.PRNGKey(0), *inputs))
        return jax.tree.map(lambda x: x.shape, shapes)

    try:
        return describe(tower) != describe(tower.clone(**{field: value}))
    except (TypeError, ValueError):  # it is no argument, or does not fit the others
        return True


def describe_differences(
    model: DualEncoder, source: Pretrained, towers: Sequence[str], tokenizer: Any = None
) -> list[str]:
    """Describes the settings of a model that differ from those of its weights, a line for each.

    `towers` are those that are taken; None for a tokenizer leaves it out.
    """
    lines, warned = [], []
    for tower in towers:
        ours, theirs, where = getattr(model, tower), tower_of(source, tower), f"model.{tower}"
        if ours is None or theirs is None:
            continue
        size = source.image_size if tower == "image" else None
        found = [(where, each) for each in compare_towers(ours, theirs, size)]
        if tower == "image":
            found += [("model", each) for each in _compare_colors(model, source)]
        warned += [tower] if any(not each.shown for _, each in found) else []
        lines += [_describe(place, each) for place, each in found]
        if tower == "text" and _differs(tokenizer, source.tokenizer):
            lines.append("  warning: the tokenizer makes other ids of a text than the one there")
            warned.append("tokenizer")
    places = ["tokenizer" if name == "tokenizer" else f"model.{name}" for name in warned]
    flags = " ".join(f"--config.{place}.name={FROM_INIT}" for place in places)
    return [*lines, f"  {flags} takes what is there"] if flags else lines


def _compare_colors(model: DualEncoder, source: Pretrained) -> Iterator[Difference]:
    for name, theirs in find_colors(source).items():
        if not _agree(tuple(getattr(model, name)), tuple(theirs)):
            yield Difference(name, getattr(model, name), theirs, False)


def _describe(where: str, found: Difference) -> str:
    told = f"{where}.{found.field} = {found.ours!r}, there {found.theirs!r}"
    if found.shown:
        return f"  {told}"
    right = advise(f"config.{where}", **{found.field: found.theirs})
    return f"  warning: {told}, which no array shows{right}"


def _differs(tokenizer: Any, settings: Mapping[str, Any] | None) -> bool:
    """Returns whether a tokenizer makes other ids than one of these settings would."""
    if tokenizer is None or settings is None or settings.get("name") not in TOKENIZERS:
        return False
    node = {**settings, "length": tokenizer.length}
    try:
        return make_named(TOKENIZERS, node, "tokenizer").fingerprint != tokenizer.fingerprint
    except (UserError, OSError):  # its files are elsewhere
        return False


def describe_model(source: Pretrained) -> dict[str, Any]:
    """Returns what a config may take over from a model: fields of `config.model`, and others.

    These are `tokenizer`, as in a config, and `transform`, its image operations.

    It has only the towers that there are, and no fields that are not known.
    """
    outside = {name: getattr(source.model, name) for name in PROJECTIONS if source.kind == "dual"}
    towers = {part: source.node[part] for part in outside and TOWERS if source.node[part]}
    towers = towers or {source.kind: source.node}
    known: dict[str, Any] = {"tokenizer": source.tokenizer} if source.tokenizer else {}
    if source.preprocessing:
        known["transform"] = source.preprocessing.transform
    return {**outside, **find_colors(source), **towers, **known}


def inherit_tower(there: Node, part: str, given: Node) -> dict[str, Any]:
    """Makes the config node of a tower that starts from a model's weights, with its settings.

    The model is as `describe_model` gives it, or as in a config; fields of the given node count.
    """
    where = f"config.model.{part}"
    if not there.get(part):
        raise ConfigError(f"{where}.name = {FROM_INIT!r}, but config.init has no {part} tower")
    node = {name: value for name, value in there[part].items() if name not in EXECUTION}
    known = list_settable(lookup(node["name"], TOWERS[part], where))
    for field, value in given.items():
        if field == "name" or value is None:
            continue
        if field not in known:
            near = suggest(field, known)
            raise ConfigError(f"{where}.{field}: {node['name']!r} has no such field{near}")
        # A table is cut for shorter texts; what a longer one would hold, nobody has learned.
        node[field] = min(value, node.get(field, value)) if field == "max_length" else value
    return node


def inherit_tokenizer(there: Node, max_length: int | None, given: Node) -> dict[str, Any]:
    """Makes the config node of the tokenizer of a model, as for `inherit_tower`.

    `max_length` are the positions of the text tower; None if they are not limited.
    """
    if not there.get("tokenizer"):
        raise ConfigError(
            f"config.tokenizer.name = {FROM_INIT!r}, but config.init has no files of a tokenizer: "
            "name one, as in --config.tokenizer.name=clip"
        )
    lengths = given.get("length") or there["tokenizer"].get("length"), max_length
    kept = {"length": min(length for length in lengths if length)}
    if shorten := given.get("shorten"):  # how the model there was trained does not count
        kept["shorten"] = shorten
    return {k: x for k, x in there["tokenizer"].items() if k != "shorten"} | kept


def inherit_transform(there: Node, place: str) -> str:
    """Returns the image operations of a model, as for `inherit_tower`, for a place in a config."""
    if not there.get("transform"):
        raise ConfigError(
            f"config.{place}.transform = {FROM_INIT!r}, but config.init does not say how images "
            f"are prepared: write --config.{place}.transform='resize_small(224)|central_crop(224)'"
        )
    return there["transform"]


def list_names(title: str, names: Collection[str]) -> list[str]:
    """Returns a line of a report that lists the first of some names; none if there are none."""
    shown = ", ".join(list(names)[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return [f"  {title}: {shown}"] if names else []


def describe_inputs(source: Pretrained) -> list[str]:
    """Describes how a model's inputs were made: its weights are worth little with other inputs."""
    lines: list[tuple[str, Any]] = []
    if seen := source.preprocessing:
        lines.append(("images", f"{seen.transform}, mean {seen.mean}, std {seen.std}"))
    if source.tokenizer:
        lines.append(("tokenizer", dict(source.tokenizer)))
    if source.temperature is not None:
        lines.append(("temperature", f"{source.temperature:.6g}, for init.temperature"))
    return [f"  there, {what}: {value}" for what, value in lines]
