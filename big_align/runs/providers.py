"""What the program supplies to components, by the name of the parameter that asks for it.

A component says in its signature what it needs (`signatures.list_given`). To supply something new,
add a line to `PROVIDERS`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from big_align.config.components.models import build_model
from big_align.config.components.signatures import list_given
from big_align.core.errors import ConfigError
from big_align.core.module_paths import fits, split_path
from big_align.core.nodes import Node
from big_align.data.labels.classes import ClassList
from big_align.models.dual_encoder import TOWERS, DualEncoder
from big_align.runs import dataset
from big_align.training.layer_rates import LayerRates


@dataclasses.dataclass(frozen=True)
class Context:
    """What providers build things from."""

    config: Node
    tokenizer: Any
    mesh: Mesh | None = None  # None if nothing is placed


def read_classes(context: Context) -> ClassList:
    """Reads the classes of the training data."""
    classes = dataset.all_classes(dataset.read_parts(context.config))
    if classes is None:
        raise ConfigError(
            f"config.objective.name = {context.config['objective']['name']!r} needs classes: name "
            "a class list in config.data.classes, or in a part of config.data.mixture"
        )
    return classes


def lock_frozen(model: DualEncoder, config: Node) -> DualEncoder:
    """Locks whatever of a model the config does not train: its statistics stay, too.

    `optimizer.frozen` and the zeros of `optimizer.rates` say what that is.
    """
    node = config.get("optimizer") or {}
    still = LayerRates(rates=tuple(node.get("rates") or ())).still
    locked = list(model.locked)
    for path in (*(node.get("frozen") or ()), *still):
        first, *rest = split_path(path)
        towers = [part for part in TOWERS if not rest or fits((part,), rest[:1])]
        if fits(("model",), (first,)):
            locked += ["/".join((part, *rest[1:])) for part in towers]
    return model.clone(locked=tuple(dict.fromkeys(locked)))


PROVIDERS: dict[str, Callable[[Context], Any]] = {
    "model": lambda context: lock_frozen(build_model(context.config), context.config),
    "mesh": lambda context: context.mesh,
    "tokenizer": lambda context: context.tokenizer,
    "classes": read_classes,
    "trained_classes": lambda context: dataset.all_classes(dataset.read_parts(context.config)),
    "num_classes": lambda context: len(read_classes(context)),
    "tags": lambda context: dataset.read_tags(context.config, context.tokenizer),
}
"""Functions of the context, by the name of the parameter that they supply."""


def provide(target: Any, context: Context) -> dict[str, Any]:
    """Makes the arguments that the program supplies to a component, by name."""
    wanted = list_given(target)
    return {name: make(context) for name, make in PROVIDERS.items() if name in wanted}
