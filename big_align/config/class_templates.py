"""The templates of class texts that a run is trained with, and evaluated with."""

from big_align.core.nodes import Node
from big_align.data.labels.templates import asks_description

Templates = tuple[str, ...] | None


def find_trained(config: Node) -> Templates:
    """Returns the templates in which a run trains class texts, if it should be asked in no others.

    These are those of an objective that classifies over the texts of all classes, or those of
    labeled data if they describe classes; None if there are none, or several sets.
    """
    if own := config["objective"].get("template"):
        return (own,)
    nodes = config["data"], *(config["data"].get("mixture") or {}).values()
    given = {tuple(node.get("templates") or ()) for node in nodes}
    return _find_only({some for some in given if any(map(asks_description, some))})


def find_evaluated(config: Node) -> Templates:
    """Returns the templates of a run's evaluators; None if they have none, or several sets."""
    nodes = config["evaluators"].values()
    return _find_only({tuple(node["templates"]) for node in nodes if node.get("templates")})


def _find_only(found: set[tuple[str, ...]]) -> Templates:
    return found.pop() if len(found) == 1 else None
