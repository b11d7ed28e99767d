"""Fields of a config that are meant by names that it has not, and steps that fit into a run."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches

from ml_collections import ConfigDict

from big_align.config.places import list_nodes
from big_align.config.stages import FIRST
from big_align.core.errors import warn_once
from big_align.core.nodes import find_node

SYNONYMS = {
    **{"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size"},
    **{"steps": "total_steps", "epochs": "total_steps", "warmup": "warmup_steps"},
}
"""Names of fields elsewhere, and here."""
SUGGESTED = 3  # fields at most
STEPS = ("log_every", "schedule.warmup_steps")
"""Fields that count steps of a run and are of no use beyond its last one.

Evaluations and checkpoints are not among them: there is one after the last step in any case.
"""


def suggest_field(config: ConfigDict, place: str) -> str:
    """Returns " (did you mean --config.FIELD=...?)" for a place where no field is, or nothing.

    A field is meant by its own name in another node, by a synonym, or by a name that is nearly its
    own, rather in the same node than in others.
    """
    above, _, name = place.rpartition(".")
    fields = {
        f"{node}.{field}".lstrip("."): field
        for node in list_nodes(config)
        for field, value in find_node(config, node).items()
        if not isinstance(value, ConfigDict)
    }
    named = {name, SYNONYMS.get(name)}
    beside = [field for field in fields if field.rpartition(".")[0] == above]
    found = (
        [field for field, last in fields.items() if last in named]
        or get_close_matches(place, beside, 1, 0.8)
        or [f for f, last in fields.items() if last in get_close_matches(name, fields.values(), 1)]
    )
    found.sort(key=lambda field: (field.rpartition(".")[0] != above, field.count(".")))
    found = found[:SUGGESTED]
    flags = " or ".join(f"--config.{field}=..." for field in found)
    return f" (did you mean {flags}?)" if flags else ""


def fit_steps(config: ConfigDict, given: Collection[str]) -> None:
    """Cuts what counts steps of a run to the `total_steps` that a command line gives, in place.

    Fields that the command line gives too stay as they are. The stages before one that is given
    get no more steps than it has. One line says what is cut.
    """
    cut = list(_cut_steps(config, given, ""))
    if cut:
        warn_once(f"to fit into config.total_steps = {config['total_steps']}, {', '.join(cut)}")


def _cut_steps(
    config: ConfigDict, given: Collection[str], prefix: str, shorter: bool = False
) -> Iterator[str]:
    total, shorter = config["total_steps"], shorter or f"{prefix}total_steps" in given
    fields = (*STEPS, f"{FIRST}.total_steps") if shorter else STEPS
    for field in fields if isinstance(total, int) else ():
        above, _, name = field.rpartition(".")
        node = find_node(config, above) or {}
        steps = node.get(name)
        if isinstance(steps, int) and steps > total and f"{prefix}{field}" not in given:
            node[name] = total
            yield f"config.{prefix}{field} is {total} instead of {steps}"
    if config.get(FIRST):
        yield from _cut_steps(config[FIRST], given, f"{prefix}{FIRST}.", shorter)
