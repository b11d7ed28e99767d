"""The stages of a run: its config holds that of the run before it, `config.first`, and so on."""

import contextlib
import re
from collections.abc import Iterator

from big_align.core.errors import UserError
from big_align.core.nodes import Node

FIRST = "first"
"""The field of a config that holds the config of the stage before, and its folder in a workdir."""
KEPT = "kept"
"""What `config.init.optimizer` is where a stage goes on with the optimizer's state of the last."""
_FIELD = re.compile(r"(?<![\w./])config\.(?=[a-z])(?!json\b|py\b)")


def list_stages(config: Node) -> list[Node]:
    """Returns the configs of the stages of a run, the earliest first and the run's own last."""
    first = config.get(FIRST)
    return [*(list_stages(first) if first else ()), config]


def count_steps_before(config: Node) -> int:
    """Returns the steps of all stages before a run."""
    return sum(each["total_steps"] for each in list_stages(config)[:-1])


def count_batches_before(config: Node) -> int:
    """Returns how many of a run's batches the stages before it use up, the last perhaps in part.

    So where the data and the seed stay, a stage begins with the examples that come next.
    """
    used = sum(each["total_steps"] * each["batch_size"] for each in list_stages(config)[:-1])
    return -(-used // config["batch_size"])


def keeps_optimizer(config: Node) -> bool:
    """Returns whether a run goes on with the optimizer's state of the stage before."""
    return (config.get("init") or {}).get("optimizer") == KEPT


@contextlib.contextmanager
def naming_stage() -> Iterator[None]:
    """Makes a UserError about the stage before name its fields as those of the run: `first.`."""
    try:
        yield
    except UserError as error:
        error.args = tuple(
            _FIELD.sub(f"config.{FIRST}.", x) if isinstance(x, str) else x for x in error.args
        )
        raise
