"""What transformers' `config.json` says about a tower, and what our config says, by field."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from big_align.core.errors import WeightsMismatch
from big_align.models import swin
from big_align.weights.tables.mapping import Rule


class Field(NamedTuple):
    """A value that both sides hold, and how theirs is read as ours and back."""

    theirs: str
    ours: str
    default: Any  # theirs, if their config leaves it out
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


class TransformersFamily(NamedTuple):
    """A kind of tower in transformers.

    Names begin with `prefix` in files that all versions of transformers 5 open: published ones have
    it, and newer versions, whose class does without, remove it.
    """

    tower: str  # our name for it
    table: Sequence[Rule]
    fields: Sequence[Field]
    always: Mapping[str, Any]  # our arguments that follow from the family
    constants: Mapping[str, Any]  # theirs of which we support one value
    architecture: str  # the class that opens the folder
    bases: Sequence[str] = ()  # prefixes of names in files of models with a head
    prefix: str = ""
    pooler: bool = False  # whether the class has a dense layer on [CLS] that our tower lacks
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    write_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda settings: {}


def read_edge(size: Any, name: str) -> int:
    """Returns the edge of a square that a config gives as one number or as two."""
    edges = {size} if isinstance(size, int) else set(size) if isinstance(size, list) else set()
    if len(edges) != 1:
        raise WeightsMismatch(f"{name} = {size!r}; only squares can be exchanged")
    return edges.pop()


def read_fields(
    family: TransformersFamily, config: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Turns a config of theirs into a node of ours."""
    for name, value in family.constants.items():
        if name in config and config[name] != value:
            raise WeightsMismatch(
                f"{where}: {name} = {config[name]!r} is not supported, only {value!r}"
            )
    node = {"name": family.tower} | dict(family.always)
    try:
        for field in family.fields:
            value = config.get(field.theirs)
            node[field.ours] = field.read(field.default if value is None else value)
        return node | family.read_more(config)
    except WeightsMismatch as error:
        raise WeightsMismatch(f"{where}: {error}") from error
    except (IndexError, TypeError) as error:
        raise WeightsMismatch(f"{where}: a value has the wrong type ({error})") from error


def write_fields(family: TransformersFamily, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turns the settings of a tower of ours into a config of theirs."""
    needed = {name: value for name, value in family.always.items() if name != "variant"}
    if faults := [
        f"{name}={value!r}, not {settings[name]!r}"
        for name, value in needed.items()
        if settings[name] != value
    ]:
        raise WeightsMismatch(f"{family.architecture} needs {' and '.join(faults)}")
    fields = {field.theirs: field.write(settings[field.ours]) for field in family.fields}
    more = family.write_more(settings)
    first = {"architectures": [family.architecture], "dtype": "float32"}
    return first | fields | more | dict(family.constants)


def check_windows(settings: Mapping[str, Any], size: int) -> None:
    """Refuses a Swin in which a map is smaller than a window, for which its class has no biases."""
    if settings["name"] != "swin":
        return
    window, last = settings["window"], swin.PATCH * 2 ** (len(settings["depths"]) - 1)
    if math.ceil(size / last) < window:
        raise WeightsMismatch(
            f"SwinModel with window={window} needs images of {(window - 1) * last + 1} pixels or "
            f"more; the model has {size}"
        )
