"""A table of image files with captions, labels or both: CSV, JSON or Parquet."""

import codecs
import io
import itertools
import os
import re
from collections.abc import Iterator

from absl import logging

from big_align.core.errors import FieldError, UserError
from big_align.core.regular_files import open_given
from big_align.data import columns, files, table_lines
from big_align.data.sources.object_rows import UNITS, find_metadata, make_row, read_objects
from big_align.data.sources.table_source import Row, TableSource, is_integer
from big_align.data.table_lines import BadLines

DELIMITERS = {",": "a comma", "\t": "a tab", ";": "a semicolon", "|": "a bar"}
SPELLED = {"tab": "\t", "\\t": "\t"}
"""How a command line can name a delimiter that is hard to type."""


class RowsSource(TableSource):
    """Examples of a table: CSV or TSV with the names of columns in the first line, or of objects.

    Columns that are not set are found by their usual names, such as `filepath,title` and
    `image,caption`, and reported in the log. Rows of one image are one example with several
    captions.

    Labels are integers in all rows, or names in all rows; the label of a name is its position
    among the sorted names of the file. In CSV an empty label means that the line has none. Several
    are separated by `|`, as in `dog|potted plant`, and integers also by spaces, as in `11 15`. In
    objects a label is a number, a name, or a list of these.

    Args:
      path: the table, local or of any fsspec file system: `.jsonl` with one JSON object per line,
        `.json` with a list of them, `.parquet`, or else CSV; or a folder with a `metadata.jsonl`,
        `.csv` or `.parquet`.
      image: the column of the image files, relative to the folder of the table or to the folder
        `images` in it; None finds it.
      label: the column of the class or classes. None finds it if no captions are read; ""
        reads none.
      caption: the column of the text, or of several texts in a list; None finds it, "" reads none.
      delimiter: what separates the columns of CSV, such as `tab`; None takes what Excel's first
        line, `sep=;`, says, or finds a comma, a tab, a semicolon or `|`.
      skip_bad_lines: whether rows that cannot be used count as broken examples while the rest is
        read.

    Raises:
      UserError: the file cannot be read, a column is missing or ambiguous, or a row has other
        columns, no image, a URL instead of a file, or a label that is not like the others; the
        message names the file, and the line if there is one.
    """

    def __init__(
        self,
        path: str,
        image: str | None = None,
        label: str | None = None,
        caption: str | None = None,
        delimiter: str | None = None,
        skip_bad_lines: bool = False,
    ):
        path = os.path.expanduser(path)
        if not path.lower().endswith((".csv", ".tsv", *UNITS)) and not files.is_file(path):
            path = find_metadata(path.rstrip("/"))
        unit = UNITS.get(os.path.splitext(path)[1].lower())
        bad, where, parted = BadLines(path, skip_bad_lines, unit or "line"), path, ""
        if unit:
            rows = list(read_objects(bad))
            names = list(dict.fromkeys(name for _, found in rows for name in found))
        else:
            self.delimiter, rows = read_csv(bad, _spell(delimiter), (image, label, caption))
            where, names = f"the first line of {path}", next(rows)[1]
            _check_header(names, image, where)
            told = DELIMITERS.get(self.delimiter, repr(self.delimiter))
            parted = f"columns separated by {told}: "
        image = columns.choose_image(image, names, columns.FILES, where)
        caption, label = columns.choose_texts(caption, label, names, where)
        found = columns.describe(image=image, caption=caption, label=label)
        logging.info("%s: %s%s", path, parted, found)
        self.image_column, self.caption_column = image, caption
        if unit:
            made = filter(None, (make_row(bad, *row, image, caption, label) for row in rows))
        else:
            slots = [names.index(name) if name else None for name in (image, label, caption)]
            made = _make_rows(bad, rows, image, slots)
        super().__init__(path, path.rpartition("/")[0], made, bool(caption), bad)


def _spell(delimiter: str | None) -> str | None:
    delimiter = SPELLED.get(delimiter or "", delimiter)
    if delimiter and len(delimiter) != 1:
        message = f"delimiter is {delimiter!r}; columns are separated by a single character"
        raise FieldError(message, delimiter="tab")
    return delimiter


def look_inside(path: str, kind: str) -> str:
    """Returns the kind of a file, by how it begins if it is local; `kind` is by its ending.

    COCO's files of JSON have no list, and a text that begins as a table does is one.
    """
    if kind not in ("coco", "text") or not os.path.isfile(path):
        return kind
    with open_given(path) as file:
        start = file.read(2**16)
    decoder = codecs.getincrementaldecoder(files.find_encoding(start))("replace")
    text = decoder.decode(start).lstrip()
    if kind == "coco":
        return "imagefolder" if text[:1] == "[" else kind
    _, lines = table_lines.take_separator(enumerate(io.StringIO(text)))
    return "csv" if is_table(next(lines, (0, ""))[1].strip()) else kind


def read_csv(
    bad: BadLines, delimiter: str | None, wanted: tuple[str | None, ...]
) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Opens a table; returns its delimiter, found if None, and its rows, columns' names first."""
    separator, lines = table_lines.take_separator(table_lines.read_text_lines(bad))
    first = next(lines, (1, ""))
    delimiter = delimiter or separator or find_delimiter(bad.path, first[1], wanted)
    return delimiter, table_lines.read_rows(itertools.chain([first], lines), delimiter, bad)


def find_delimiter(path: str, line: str, wanted: tuple[str | None, ...]) -> str:
    """Finds the delimiter that gives the first line the most columns that are wanted or usual."""
    line = line.strip("\r\n")
    groups = (*columns.FILES, *columns.CAPTIONS, *columns.LABELS)
    usual = {name for group in groups for name in group}

    def count(delimiter: str) -> tuple[int, int, bool]:
        names = [name.strip(' "') for name in line.split(delimiter)]
        known = sum(name in wanted or name.lower() in usual for name in names)
        return known, len(names), delimiter == ("\t" if path.endswith(".tsv") else ",")

    return max(DELIMITERS, key=count)


def is_table(line: str) -> bool:
    """Returns whether a line names columns of images, and of captions or labels."""
    groups = columns.FILES, (*columns.CAPTIONS, *columns.LABELS)
    for delimiter in DELIMITERS:
        names = {name.strip(' "').lower() for name in line.split(delimiter)}
        if all(any(names & set(names_) for names_ in each) for each in groups):
            return True
    return False


def _check_header(header: list[str], image: str | None, where: str) -> None:
    """Refuses a first line that names no columns, or names them all as one."""
    listed = columns.list_names(header)
    if image not in header and any(map(table_lines.IMAGE_FILE.search, header)):
        raise UserError(
            f"{where} must name the columns, as filepath,title does; it has {listed}, a row of the "
            "table: put the names before it"
        )
    usual = {name for group in columns.FILES for name in group}
    if image is None and len(header) == 1 and header[0].lower() not in usual:
        message = f"{where} has only one column, {listed}; if that is several, say what is between"
        raise FieldError(message, delimiter="CHARACTER")


def _make_rows(
    bad: BadLines, lines: Iterator[tuple[int, list[str]]], column: str, slots: list[int | None]
) -> Iterator[Row]:
    line = 0
    for line, cells in lines:
        image, label, caption = ("" if slot is None else cells[slot] for slot in slots)
        if image.strip():
            yield Row(line, image.strip(), _split_labels(label), [caption])
        else:
            bad.add(line, f" names no image in the column {column!r}")
    if not line:
        raise UserError(f"{bad.path} has no line after the names of the columns")


def _split_labels(cell: str) -> list[str]:
    """Splits a cell at `|`, and at spaces if it holds nothing but integers.

    `2.0` is one, too: tables that pandas wrote have decimals where a label is missing.
    """
    parts = cell.replace("|", " ").split()
    words = [re.sub(r"^(-?\d+)\.0+$", r"\1", part) for part in parts]
    if all(map(is_integer, words)):
        return words
    return [name for name in map(str.strip, cell.split("|")) if name]
