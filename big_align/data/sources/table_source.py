"""Image files named by the rows of a table: rows of one image are one example."""

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from absl import logging

from big_align.core.errors import UserError, pass_unreachable
from big_align.data import columns, examples, files, listing
from big_align.data.sources.listed_source import SHARD_SIZE, ListedSource
from big_align.data.table_lines import BadLines

LOOKED_FOR = 200
"""Images that are looked for, spread over a table whose bad lines are left out: if none is there,
the folder is wrong, and not the lines."""

IMAGE_FOLDERS = "images", "Images"
"""Where the images of a table may be beside it, as in copies of Flickr8k."""


class Row(NamedTuple):
    """What a row of the table says."""

    line: int  # its number in the file; 0 if it has none
    image: str  # the file, as the table has it
    labels: list[str]  # integers or names
    captions: list[str]
    fault: str = ""  # why it has no captions, if it should have some


class TableSource(ListedSource):
    """Examples of a table of image files.

    Rows of one image are one example, with the captions and the labels of all of them in their
    order: as separate examples, they would be each other's negatives in training and wrong
    candidates in retrieval.

    Labels are integers in all rows, or names in all rows; the label of a name is its position among
    the sorted names of the table. Images are relative to the folder, or to its folder `images`. The
    lines that cannot be used go to `bad`, and are counted; with None the first ends the reading.
    """

    delimiter: str | None = None  # what separates the columns
    image_column: str | None = None  # None if it is not known
    caption_column: str | None = None  # None if there is none

    def __init__(
        self,
        path: str,
        folder: str,
        rows: Iterable[Row],
        has_captions: bool,
        bad: BadLines | None = None,
    ):
        self.path = path
        bad = bad or BadLines(path)
        rows = list(_pass_usable(rows, has_captions, bad) if bad.skip else rows)
        if not bad.skip and rows:
            folder = _check_first(bad, rows[0], folder, has_captions)
        rows, integers = _check_labels(rows, bad)
        if not rows:
            told = "".join(f"; {bad.unit} {n} {why}" for n, why in list(bad.found.items())[:1])
            raise UserError(f"{path} has no row of an image{told}")
        if bad.skip:
            folder = _check_some(path, rows, folder)
        labels, class_names = _number_labels(rows, integers)
        grouped: dict[str, list[int]] = {}
        paths = [join(folder, row.image) for row in rows]
        paths = [path if "://" in path else posixpath.normpath(path) for path in paths]  # ./a.jpg
        names = listing.group_names(paths).items()
        known = {other: name for name, others in names for other in (name, *others)}
        for number, name in enumerate(paths):
            grouped.setdefault(known[name], []).append(number)
        if len(grouped) < len(rows):
            logging.info("%s: %d rows are %d images", path, len(rows), len(grouped))
        groups = list(grouped.values())
        captions = [[text for n in group for text in rows[n].captions] for group in groups]
        super().__init__(
            path.rpartition("/")[2],
            [join(folder, rows[group[0]].image) for group in groups],
            [tuple(dict.fromkeys(c for n in group for c in labels[n])) for group in groups],
            captions=captions if has_captions else None,
            class_names=class_names,
            lines=[rows[group[0]].line for group in groups] if rows[0].line else None,
            faults={
                number: rows[n].fault
                for number, group in enumerate(groups)
                for n in group
                if rows[n].fault
            },
            unit=bad.unit,
        )
        self.bad_lines = dict(sorted(bad.found.items()))  # why, by their numbers
        for line, why in list(self.bad_lines.items())[:1]:
            told = (path, len(bad.found), bad.unit, bad.unit, line, why)
            logging.warning("%s: %d %ss left out; %s %d %s", *told)
        starts = [rows[group[0]].line for group in groups[::SHARD_SIZE]]
        at = np.searchsorted(starts, list(self.bad_lines), side="right") - 1
        np.add.at(self.broken, np.maximum(at, 0), 1)


def join(folder: str, image: str) -> str:
    """Puts a folder before a relative path."""
    return image if "://" in image else posixpath.join(folder, image)


def _check_first(bad: BadLines, row: Row, folder: str, has_captions: bool) -> str:
    """Returns the folder of the images; raises UserError if the first is a URL or is not there."""
    where = f"{bad.path}, {bad.unit} {row.line}" if row.line else bad.path
    columns.check_address(row.image, "COLUMN" if has_captions else None, bad.path, where)
    try:
        found = _find_folder(row.image, folder)
    except (OSError, ValueError) as error:
        pass_unreachable(error)
        return folder  # such as a path with a zero byte: that row alone is broken
    if found is None:
        raise UserError(f"{where}: {_explain_missing(folder, row.image)}")
    return found


def _find_folder(image: str, folder: str) -> str | None:
    folders = (folder, *(join(folder, name) for name in IMAGE_FOLDERS))
    return next((each for each in folders if files.exists(join(each, image))), None)


def _explain_missing(folder: str, image: str, others: str = "") -> str:
    told = (
        f"there is no file {join(folder, image)}{others}; images are relative to the folder of the "
        "table, or to the folder `images` in it"
    )
    if "\\" in image:
        return f"{told}; folders are separated by /, not by a backslash"
    return f"{told}; a path is no address, so write a space for %20" if "%20" in image else told


def _pass_usable(rows: Iterable[Row], has_captions: bool, bad: BadLines) -> Iterator[Row]:
    """Yields the rows that name a file and, if captions are read, have one; the others are bad."""
    for row in rows:
        if row.fault or (has_captions and not any(map(examples.strip, row.captions))):
            bad.add(row.line, row.fault or "the caption is empty")
            continue
        try:
            columns.check_address(row.image, None, bad.path, "")
        except UserError as error:
            bad.add(row.line, str(error))
        else:
            yield row


def _check_some(path: str, rows: list[Row], folder: str) -> str:
    """Returns the folder of the images; raises a UserError if none of many is there."""
    for row in rows[:: -(-len(rows) // LOOKED_FOR)]:
        try:
            found = _find_folder(row.image, folder)
        except (OSError, ValueError) as error:
            pass_unreachable(error)
            continue
        if found is not None:
            return found
    others = ", nor any other that was looked for"
    raise UserError(f"{path}: {_explain_missing(folder, rows[0].image, others)}")


def _check_labels(rows: list[Row], bad: BadLines) -> tuple[list[Row], bool]:
    """Returns the rows whose labels are like the first one, and whether these are integers."""
    first = next(((row.line, label) for row in rows for label in row.labels), None)
    if first is None:
        return rows, False
    integers, kept = is_integer(first[1]), []
    spelled: dict[int, tuple[int, str]] = {}
    for row in rows:
        fault = _find_fault(row.labels, integers, first, bad.unit)
        if integers and not fault:
            fault = _find_other(row, spelled, bad.unit)
        if fault:
            bad.add(row.line, fault)
        else:
            kept.append(row)
    return kept, integers


def _find_fault(labels: list[str], integers: bool, first: tuple[int, str], unit: str) -> str:
    for label in labels:
        if is_integer(label) != integers:
            return (
                f": the label is {label!r} and that of {unit} {first[0]} is {first[1]!r}; labels "
                f"are integers in all {unit}s or names in all {unit}s"
            )
    try:
        examples.clean_labels(labels if integers else [])
    except examples.WrongLabel as error:
        return f": {error}"
    return ""


def _find_other(row: Row, spelled: dict[int, tuple[int, str]], unit: str) -> str:
    """Returns why labels cannot be numbers: another one, 007, would be the same number as 7."""
    for label in row.labels:
        line, text = spelled.setdefault(int(label), (row.line, label))
        if text != label:
            return (
                f": the labels {label!r} and {text!r} of {unit} {line} are the same number; write "
                "one of them in both, or names"
            )
    return ""


def _number_labels(
    rows: list[Row], integers: bool
) -> tuple[list[tuple[int, ...]], tuple[str, ...] | None]:
    if integers:
        return [examples.clean_labels(row.labels) for row in rows], None
    names = sorted({label for row in rows for label in row.labels})
    numbers = {name: number for number, name in enumerate(names)}
    numbered = ([numbers[name] for name in row.labels] for row in rows)
    return list(map(examples.clean_labels, numbered)), tuple(names) if names else None


def is_integer(text: str) -> bool:
    """Returns whether a label is a number."""
    return text.removeprefix("-").isdecimal()
