"""Checks that files on disk match a layout: the names of its labels, and its captions."""

from collections.abc import Sequence

from big_align.core.errors import UserError, put_in_a_line
from big_align.data import boundary, examples
from big_align.data.labels.classes import ClassList
from big_align.data.labels.label_names import match_names, read_names
from big_align.data.shard_offsets import ShardOffsets
from big_align.suites.benchmark import Layout

CHECKED = 64  # examples whose captions are counted when a benchmark is opened
CLASS_NAMES = "classnames.txt"
"""The file of CLIP_benchmark, and of our own shards, with the names of the labels in order."""


def bind_labels(source: examples.Source, layout: Layout, root: str, name: str) -> tuple[int, ...]:
    """Returns the class of each label of a source, after comparing the names of the labels."""
    order, own = layout.order or (), layout.own_names
    named_beside = layout.kind in ("clip_benchmark", "shards")
    found = _read_class_names(root, name) if named_beside else source.class_names
    if found is None or own is None:
        return order
    places = match_whole(found, own, root, name)
    if layout.kind != "class_folders" and places != sorted(places):  # whose numbers are in files
        first = next(label for label, place in enumerate(places) if place != label)
        raise UserError(
            f"{name}: label {first} is {found[first]!r} in {root} and {own[first]!r} in this "
            "layout of it: the classes are the same in another order, and one of the two is wrong"
        )
    return tuple(order[place] for place in places)


def match_whole(found: Sequence[str], own: Sequence[str], where: str, name: str) -> list[int]:
    """Returns the index among a layout's names for each name found; none of them may be missing."""
    places = match_names(found, ClassList.from_names(own), where, name).tolist()
    missing = sorted(set(range(len(own))) - set(places))
    if missing:
        raise UserError(
            f"{name}: {where} has no class {own[missing[0]]!r}; {len(missing)} of {len(own)} "
            "classes are not there, and a part of them is another benchmark, with other numbers"
        )
    return places


def check_captions(source: examples.Source, least: int, name: str) -> None:
    """Checks that some examples have enough captions, and not several joined in one text."""
    offsets = ShardOffsets(source.shard_sizes)
    count = min(CHECKED, offsets.count)
    for number in range(count):
        place = offsets.locate_one(number * offsets.count // count)
        try:
            captions = boundary.read_texts(source, *place)[0]
        except examples.BrokenExample:
            continue
        several = next((text for text in captions if "\n" in text), "")
        if several or len(captions) < least:
            shown = put_in_a_line((several or captions[0])[:60])
            raise UserError(
                f"{name}: {source.name(*place)} has "
                + ("several captions in one text" if several else f"{len(captions)} captions")
                + f", where each image has at least {least}, each by itself: {shown!r}"
            )


def _read_class_names(root: str, name: str) -> tuple[str, ...]:
    try:
        return read_names(f"{root}/{CLASS_NAMES}")
    except UserError as error:
        raise UserError(
            f"{name}: {root} has no {CLASS_NAMES}, which names the labels, a line each; without "
            "it their order is not known"
        ) from error
