"""Ids before the names of classes in a list with a line for each."""

import re
from collections.abc import Sequence

from absl import logging

from big_align.data.labels.word_net import ID

SYNSET = re.compile(rf"(?P<id>{ID.pattern})(?P<mark>\s*[:,]\s*|\s+)(?P<name>\S.*)")
NUMBER = re.compile(r"(?P<id>0|[1-9]\d*)(?P<mark>\s*[:\t]\s*|\s*[,.)]\s+| +)(?P<name>\S.*)")
FEWEST = 3  # lines in a list with another mark: "1 person" and "2 people" are names


def split_ids(lines: Sequence[str], where: str) -> list[tuple[str, str]]:
    """Returns the WordNet id of each line, or "", and its name without that id or its number.

    Something is an id only if every line has one, by the same mark: different ids of WordNet, or
    numbers that count up from 0 or 1 before different names. Otherwise lines stay as they are; they
    have no spaces around them.
    """
    found = list(map(SYNSET.fullmatch, lines))
    ids = [""] * len(lines)
    names = list(lines)
    if lines and all(found) and len({match["id"] for match in found}) == len(lines):
        ids, names = [match["id"] for match in found], [match["name"] for match in found]
    counted = _drop_numbers(names)
    if counted != list(lines):
        shown = f"{lines[0][:80]!r} is {counted[0][:80]!r}" + f" with the id {ids[0]}" * bool(
            ids[0]
        )
        logging.info("%s: every line has an id or a number before its name: %s", where, shown)
    return list(zip(ids, counted, strict=True))


def _drop_numbers(names: list[str]) -> list[str]:
    """Returns names without the numbers before them, if these count the lines."""
    found = list(map(NUMBER.fullmatch, names))
    if len(names) < 2 or not all(found):
        return names
    first = int(found[0]["id"][:1])
    counted = [match["id"] for match in found] == [str(first + n) for n in range(len(names))]
    marks = {match["mark"].strip(" ") for match in found}
    rest = [match["name"] for match in found]
    # "1 euro" and "2 euros" are told apart by nothing but their numbers
    different = len({name.casefold().rstrip("s") for name in rest}) == len(names)
    if first > 1 or not counted or len(marks) > 1 or not different:
        return names
    return names if len(names) < FEWEST and not marks <= {":", "\t"} else rest
