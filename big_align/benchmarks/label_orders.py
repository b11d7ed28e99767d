"""How a layout numbers its classes: its own names, and the class of a list for each."""

from collections.abc import Sequence
from typing import Any

from big_align.benchmarks.benchmark import ABSENT, take_classes
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.labels.label_check import normalize_name

Order = tuple[tuple[str, ...] | None, tuple[int, ...]]
"""The names that a layout has for its labels, or None, and the position of the class of each."""


def find_subset(class_list: str, wanted: Sequence[str | int]) -> tuple[int, ...]:
    """Returns the positions in a class list of classes given as names, ids or positions.

    Raises:
      ValueError: one matches no class of the list, or several.
    """
    places = _Places(read_classes(class_list))
    return tuple(places.find(one) for one in wanted)


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

    Raises:
      ValueError: an entry matches no class, or several.
    """
    classes = take_classes(class_list, subset)
    if isinstance(labels, str):
        return _read_word(labels, read_classes(class_list), classes, subset)
    places = _Places(classes)
    if isinstance(labels, dict):
        return None, tuple(places.find(one) for one in labels["unnamed"])
    pairs = [(one, one) if isinstance(one, str) else one for one in labels]
    own_names = tuple(own for own, _ in pairs)
    return own_names, tuple(ABSENT if one is None else places.find(one) for _, one in pairs)


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


class _Places:
    """Finds classes of a list by name and id."""

    def __init__(self, classes: ClassList):
        self._count = len(classes)
        self._places: dict[str, set[int]] = {}
        for position, texts in enumerate(zip(classes.names, classes.ids, strict=True)):
            for text in filter(None, texts):
                self._places.setdefault(normalize_name(text), set()).add(position)

    def find(self, one: str | int) -> int:
        if isinstance(one, int):
            found = {one} & set(range(self._count))
        else:
            found = self._places.get(normalize_name(one), set())
        if len(found) != 1:
            raise ValueError(f"{one!r} stands for {len(found)} classes of {self._count}")
        return next(iter(found))
