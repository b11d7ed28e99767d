"""Labels joined by the names of their classes; by number only if one side has no names."""

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Int

from big_align.core.errors import UserError, suggest
from big_align.core.words import fold_text, write_name
from big_align.data import files
from big_align.data.examples import WrongLabel
from big_align.data.labels.classes import ClassList
from big_align.data.labels.line_ids import split_ids

Names = tuple[str, ...] | None
"""The name of each label; None if labels are only numbers."""
NAME_FILES = "classes.txt", "classnames.txt"
"""Files beside shards with a name a line, from `big_align.tools.prepare` and CLIP_benchmark."""


def match_names(
    names: Sequence[str], classes: ClassList, where: str, where_list: str = "the class list"
) -> Int[np.ndarray, " k"]:
    """Returns the position in a class list for each name; UserError if it has none or several.

    A name may be the name or the id of its class. Case, underscores and hyphens are ignored, unless
    they tell classes apart. Names of the whole list in its order match it, even if some classes
    have the same name. `where` and `where_list` are for messages.
    """
    listed = list(zip(classes.names, classes.ids, strict=True))
    found = [normalize_name(name) for name in names]
    if len(found) == len(listed) and all(
        name in map(normalize_name, each) for name, each in zip(found, listed, strict=True)
    ):
        return np.arange(len(listed))
    exact, alike = _find_places(listed, str), _find_places(listed, normalize_name)
    places = [
        exact.get(name) or exact.get(write_name(name)) or alike.get(normal, [])
        for name, normal in zip(names, found, strict=True)
    ]
    strange = [label for label, at in enumerate(places) if not at]
    if strange:
        first = names[strange[0]]
        raise UserError(
            f"{where}: label {strange[0]} is {first!r}, which is no class of {where_list}"
            f"{suggest(first, classes.names)}; {len(strange)} of its {len(names)} classes are not "
            f"among the {len(listed)} there, {classes.names[0]!r} the first. Name a list that has "
            "them, or leave them out"
        )
    for label, at in enumerate(places):
        if len(at) > 1:
            raise UserError(
                f"{where}: label {label} is {names[label]!r}, the name of {len(at)} classes of "
                f"{where_list}, {', '.join(map(str, at))}; name it by its id"
            )
    return np.array([at[0] for at in places], np.int64)


def _find_places(
    listed: Sequence[tuple[str, str]], form: Callable[[str], str]
) -> dict[str, list[int]]:
    """Returns the classes of each name and id, in some form."""
    places = collections.defaultdict(list)
    for place, each in enumerate(listed):
        for name in {form(one) for one in each if one}:
            places[name].append(place)
    return places


class UnitedNames(NamedTuple):
    """The names of several files, each of which numbers its labels by itself."""

    names: Names  # those of all
    tables: tuple[Int[np.ndarray, " k"] | None, ...]  # of each file: numbers of its labels

    def renumber(self, labels: tuple[int, ...], file: int) -> tuple[int, ...]:
        """Returns the labels of an example of a file among those of all; raises WrongLabel."""
        table = self.tables[file]
        if table is None:
            return labels
        for label in labels:
            if label >= len(table):
                raise WrongLabel(f"the label {label} is beyond the {len(table)} that are named")
        return tuple(int(table[label]) for label in labels)


def unite_names(lists: Sequence[Names], titles: Sequence[str]) -> UnitedNames:
    """Numbers the classes of several files together: those of the first, then what others add.

    A file without examples has (). It is a UserError if only some files have names, so that the
    labels of the others mean nothing; or if names differ, and two classes of a file have the same.
    """
    different = list(dict.fromkeys(filter(None, lists)))
    if different and None in lists:
        has, lacks = lists.index(different[0]), lists.index(None)
        raise UserError(
            f"{titles[has]} names its classes and {titles[lacks]} does not, so their labels cannot "
            "be joined; name the classes in all, or read the files as two sources"
        )
    if len(different) < 2:
        return UnitedNames(different[0] if different else None, (None,) * len(lists))
    one, other = (titles[lists.index(names)] for names in different[:2])
    twice = [name for each in different for name in set(each) if each.count(name) > 1]
    if twice:
        raise UserError(
            f"{one} and {other} number their classes differently, and two classes are called "
            f"{twice[0]!r}, so the labels cannot be joined by name"
        )
    logging.warning(
        "%s and %s number their classes differently: all labels are matched by name", one, other
    )
    names = tuple(dict.fromkeys(name for each in different for name in each))
    numbers = {name: number for number, name in enumerate(names)}
    tables = {each: np.array([numbers[name] for name in each]) for each in different}
    return UnitedNames(names, tuple(map(tables.get, lists)))


def read_names(path: str) -> tuple[str, ...]:
    """Returns the names of the labels 0, 1, ... in a file, without ids (`line_ids.split_ids`)."""
    lines = [line.strip() for line in files.split_lines(files.read_text(path).rstrip())]
    return tuple(name for _, name in split_ids(lines, path))


def unite_folders(paths: Sequence[str]) -> UnitedNames:
    """Joins the names that the folders of some shards have for their labels (`unite_names`)."""
    folders = [path.rpartition("/")[0] or "." for path in paths]
    found: dict[str, Names] = {}
    for folder in dict.fromkeys(folders):
        named = filter(files.is_file, (f"{folder}/{name}" for name in NAME_FILES))
        found[folder] = next(map(read_names, named), None)
    return unite_names([found[folder] for folder in folders], folders)


def normalize_name(name: str) -> str:
    """Returns the words without case, separated by single spaces, as class names are compared."""
    return write_name(fold_text(name).replace("-", " "))
