"""Checks that files on disk match a layout: the names of its labels, and its captions."""

from collections.abc import Sequence

from big_align.benchmarks.benchmark import Layout
from big_align.data import boundary, examples
from big_align.data.files import read_text
from big_align.data.labels.label_check import normalize_name
from big_align.data.shard_offsets import ShardOffsets
from big_align.errors import UserError, put_in_a_line

CHECKED = 64  # examples whose captions are counted when a benchmark is opened
CLASS_NAMES = "classnames.txt"
"""The file of CLIP_benchmark, and of our own shards, with the names of the labels in order."""


def bind_labels(source: examples.Source, layout: Layout, root: str, name: str) -> tuple[int, ...]:
    """Returns the class of each label of a source, after comparing the names of the labels.

    Args:
      source: a source in the layout.
      layout: a layout with an order.
      root: the folder of the data set.
      name: name of the benchmark, for error messages.

    Raises:
      UserError: the source names other classes, in another order, or not all of them.
    """
    order, own = layout.order or (), layout.own_names
    if layout.kind == "class_folders":
        return tuple(order[place] for place in match_folders(source, own or (), root, name))
    named_beside = layout.kind in ("clip_benchmark", "shards")
    found = _read_class_names(root, name) if named_beside else source.class_names
    if found is not None and own is not None:
        _check_names(found, own, root, name)
    return order


def match_folders(source: examples.Source, own: Sequence[str], where: str, name: str) -> list[int]:
    """Returns the index among a layout's names for each folder that a source has found.

    Args:
      source: a source with one folder per class.
      own: the names that the folders must have.
      where: location of the folders, for error messages.
      name: name of the benchmark, for error messages.

    Raises:
      UserError: a folder is not one of them, or one of them is missing.
    """
    places = {normalize_name(one): place for place, one in enumerate(own)}
    found = [normalize_name(folder) for folder in source.class_names or ()]
    strange = [n for n, folder in enumerate(found) if folder not in places]
    if strange:
        first = (source.class_names or ())[strange[0]]
        raise UserError(
            f"{name}: the folder {first!r} in {where} is no class of it; {len(strange)} of "
            f"{len(found)} folders are none"
        )
    missing = sorted(places.keys() - set(found), key=places.__getitem__)
    if missing:
        raise UserError(
            f"{name}: {where} has no folder {own[places[missing[0]]]!r}; {len(missing)} of "
            f"{len(own)} classes are not there, and numbers of some of them would be others"
        )
    return [places[folder] for folder in found]


def check_captions(source: examples.Source, least: int, name: str) -> None:
    """Checks the captions of some examples.

    Args:
      source: a source with captions.
      least: least number of captions per image.
      name: name of the benchmark, for error messages.

    Raises:
      UserError: an image has fewer, or several captions are joined in one text.
    """
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
        text = read_text(f"{root}/{CLASS_NAMES}")
    except UserError as error:
        raise UserError(
            f"{name}: {root} has no {CLASS_NAMES}, which names the labels, a line each; without "
            "it their order is not known"
        ) from error
    return tuple(line.strip() for line in text.rstrip().split("\n"))


def _check_names(found: Sequence[str], own: Sequence[str], where: str, name: str) -> None:
    """Raises an error if names differ from those of the layout, in order; it names the first."""
    if len(found) != len(own):
        raise UserError(
            f"{name}: {where} names {len(found)} classes, and this layout of it has {len(own)}; a "
            "part of the classes is another benchmark, which says which they are"
        )
    pairs = list(zip(map(normalize_name, found), map(normalize_name, own), strict=True))
    differing = [label for label, (one, other) in enumerate(pairs) if one != other]
    if differing:
        first = differing[0]
        same = sorted(one for one, _ in pairs) == sorted(other for _, other in pairs)
        raise UserError(
            f"{name}: label {first} is {found[first]!r} in {where} and {own[first]!r} in this "
            f"layout of it; {len(differing)} of {len(own)} differ"
            + (": they are the same in another order" if same else "")
        )
