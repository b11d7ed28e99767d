"""How a layout numbers its classes: its own names, and the class of a list for each."""

from collections.abc import Sequence
from typing import Any

from big_align.data.derived.relabeled_source import ABSENT
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.labels.label_names import match_names
from big_align.suites.benchmark import take_classes

Order = tuple[tuple[str, ...] | None, tuple[int, ...]]
"""The names that a layout has for its labels, or None, and the position of the class of each."""


def find_subset(class_list: str, wanted: Sequence[str | int]) -> tuple[int, ...]:
    """Returns the positions in a class list of classes given as names, ids or positions."""
    return _find_places(wanted, read_classes(class_list), class_list)


def read_order(labels: Any, class_list: str, subset: tuple[int, ...] | None) -> Order:
    """Reads how the file of a data set specifies the labels of a layout.

    Args:
      labels: a list whose entries are either a name that is also the name, or the id, of its class;
        or [own name, class], where the class is a name, an id, a position, or null if it is left
        out. {"unnamed": [class, ...]} if the layout has no names. Or a word: "names" or "ids" for
        those of the whole list in its order; with "subset" before it, for those of the classes that
        count; with "sorted" before it, for these in the order in which folders are listed;
        "unnamed" for the classes in order.
      class_list: class list of the benchmark.
      subset: the positions in it that count; None for all.
    """
    classes = take_classes(class_list, subset)
    if isinstance(labels, str):
        return _read_word(labels, read_classes(class_list), classes, subset)
    if isinstance(labels, dict):
        return None, _find_places(labels["unnamed"], classes, class_list)
    pairs = [(one, one) if isinstance(one, str) else one for one in labels]
    own_names = tuple(own for own, _ in pairs)
    return own_names, _find_places([one for _, one in pairs], classes, class_list)


def _read_word(
    word: str, whole: ClassList, classes: ClassList, subset: tuple[int, ...] | None
) -> Order:
    if word == "unnamed":
        return None, tuple(range(len(classes)))
    which, _, field = word.rpartition(" ")
    if field not in ("names", "ids") or which not in ("", "subset", "sorted"):
        raise ValueError(f"labels = {word!r} is no word for an order")
    if not which:
        positions = range(len(whole)) if subset is None else subset
        place = {position: n for n, position in enumerate(positions)}
        return getattr(whole, field), tuple(place.get(n, ABSENT) for n in range(len(whole)))
    own = getattr(classes, field)
    order = range(len(own)) if which == "subset" else sorted(range(len(own)), key=own.__getitem__)
    return tuple(own[n] for n in order), tuple(order)


def _find_places(
    wanted: Sequence[str | int | None], classes: ClassList, where: str
) -> tuple[int, ...]:
    """Returns the positions of classes given as names, ids or positions; ABSENT for None."""
    names = [one for one in wanted if isinstance(one, str)]
    found = iter(match_names(names, classes, where).tolist())
    places = [next(found) if isinstance(one, str) else one for one in wanted]
    for place in places:
        if place is not None and place not in range(len(classes)):
            raise ValueError(f"{where}: {place} is no position among {len(classes)} classes")
    return tuple(ABSENT if place is None else place for place in places)
