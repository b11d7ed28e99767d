"""Checks that the labels of a source, and its names for them, fit a class list."""

import concurrent.futures
import functools

import numpy as np

from big_align.data import boundary, examples
from big_align.data.labels.classes import ClassList, read_classes
from big_align.data.shard_offsets import ShardOffsets
from big_align.errors import UserError
from big_align.words import fold_text, write_name

CHECKED_FIRST = 65_536  # examples whose labels are looked at before training starts
CHECK_THREADS = 32  # reads wait for storage, not for the processor
CHECK_CHUNK = 64


def check_label(name: str, label: int, num_classes: int) -> None:
    """Raises a UserError if a label is not in a class list.

    Args:
      name: the name of the example, for the message.
      label: its class, or -1.
      num_classes: the length of the list.
    """
    if label == examples.NO_LABEL:
        raise UserError(
            f"{name} has no label, and a class list of {num_classes} is set: let the source read "
            "labels (its argument `label`), or leave `classes` out"
        )
    if not 0 <= label < num_classes:
        raise UserError(
            f"{name} has the label {label}, which is not in the class list: its {num_classes} "
            f"classes are the labels 0 to {num_classes - 1}. Mend the label or set `classes` to a "
            "list that has it"
        )


def check_labels(source: examples.Source, num_classes: int) -> None:
    """Checks the labels of up to 65,536 examples, spread evenly, without reading images.

    Broken examples are skipped.

    Raises:
      UserError: names the first example found whose label is missing or not in the class list.
    """
    offsets = ShardOffsets(source.shard_sizes)
    count = min(offsets.count, CHECKED_FIRST)
    shards, indexes = offsets.locate(np.arange(count) * offsets.count // count)
    places = list(zip(shards.tolist(), indexes.tolist(), strict=True))
    chunks = [places[first : first + CHECK_CHUNK] for first in range(0, count, CHECK_CHUNK)]
    check = functools.partial(_check_places, source, num_classes)
    pool = concurrent.futures.ThreadPoolExecutor(CHECK_THREADS)
    try:
        for _ in pool.map(check, chunks):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _check_places(source: examples.Source, num_classes: int, places: list[tuple[int, int]]) -> None:
    for place in places:
        try:
            label = examples.single_label(boundary.read_texts(source, *place)[1])
        except examples.WrongLabel as error:
            raise UserError(f"{source.name(*place)}: {error}") from error
        except examples.BrokenExample:
            continue
        check_label(source.name(*place), label, num_classes)


def find_classes(names: tuple[str, ...] | str, *sources: examples.Source) -> ClassList:
    """Returns a class list that the sources agree with.

    Args:
      names: the names of the classes, or what `read_classes` takes, or "source" for the names that
        the first source has itself, with spaces for underscores.
      *sources: what `check_class_names` compares it with.

    Raises:
      UserError: there is no such list, or a source names other classes, or the first one none.
    """
    if names == "source":
        if sources[0].class_names is None:
            raise UserError("names = 'source', but the source has no names of its own: name a list")
        classes = ClassList.from_names([write_name(name) for name in sources[0].class_names])
    else:
        classes = read_classes(names) if isinstance(names, str) else ClassList.from_names(names)
    for source in sources:
        check_class_names(source, classes)
    return classes


def check_class_names(source: examples.Source, classes: ClassList) -> None:
    """Compares the classes that a source names with a class list, label by label.

    A name of the source may be the name or the id of its class in the list; case, underscores and
    hyphens are ignored. A source that names no classes is not compared.

    Raises:
      UserError: their numbers differ, or some names do; the message gives the first.
    """
    if source.class_names is None:
        return
    where = source.shard_name(0)
    found = [normalize_name(name) for name in source.class_names]
    wanted = [
        {normalize_name(name), normalize_name(id)}
        for name, id in zip(classes.names, classes.ids, strict=True)
    ]
    if len(found) != len(wanted):
        raise UserError(
            f"the source of {where} has {len(found)} classes and the class list has {len(wanted)}: "
            "label by label they must be the same. Set `classes` to the list of this source"
        )
    differing = [n for n, name in enumerate(found) if name not in wanted[n]]
    if differing:
        first = differing[0]
        id = f" ({classes.ids[first]})" if classes.ids[first] else ""
        reordered = all(any(name in names for names in wanted) for name in found)
        raise UserError(
            f"label {first} is {source.class_names[first]!r} in the source of {where} and "
            f"{classes.names[first]!r}{id} in the class list; {len(differing)} of {len(found)} "
            "classes differ"
            + (": they are the same in another order. Sort" if reordered else ". Write")
            + " the class list as the source has it"
        )


def normalize_name(name: str) -> str:
    """Returns the words without case, separated by single spaces, as class names are compared."""
    return write_name(fold_text(name).replace("-", " "))
