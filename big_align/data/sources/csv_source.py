"""A CSV or TSV table of image files with captions, labels or both."""

import csv
import io
from collections.abc import Iterator

from absl import logging

from big_align.data import columns
from big_align.data.sources.table_source import Row, TableSource, is_integer, read_table
from big_align.errors import UserError

DELIMITERS = {",": "a comma", "\t": "a tab", ";": "a semicolon"}
SPELLED = {"tab": "\t", "\\t": "\t"}
"""How a command line can name a delimiter that is hard to type."""


class CsvSource(TableSource):
    """Examples of a CSV or TSV file whose first line names the columns.

    Columns that are not set are found by their usual names, such as `filepath,title` and
    `image,caption`, and told in the log. Rows of one image are one example with several captions.

    Labels are integers on all lines, or names on all lines; the label of a name is its place among
    the sorted names of the file. Where a line leaves the label empty, it has none. Several are
    parted by `|`, as in `dog|potted plant`, and integers also by spaces, as in `11 15`.

    Args:
      path: the table, UTF-8, local or of any fsspec file system.
      image: the column of the image files, relative to the folder of the table; None finds it.
      label: the column of the class or classes. None finds it where no captions are read; ""
        reads none.
      caption: the column of the text, or of several texts in a JSON list; None finds it, "" reads
        none.
      delimiter: what parts the columns, `tab` for one; None finds a comma, a tab or a semicolon.

    Raises:
      UserError: names the file, and the line where there is one: it cannot be read, a column is
        missing or cannot be told, a line has other columns, no image, an address in place of a
        file, or a label that is not like the others.
    """

    def __init__(
        self,
        path: str,
        image: str | None = None,
        label: str | None = None,
        caption: str | None = None,
        delimiter: str | None = None,
    ):
        text = read_table(path)
        delimiter = SPELLED.get(delimiter or "", delimiter)
        delimiter = delimiter or find_delimiter(path, text, (image, label, caption))
        lines = read_lines(path, text, delimiter)
        _, header = next(lines)
        where = f"the first line of {path}"
        image = columns.choose_image(image, header, columns.FILES, where)
        caption, label = columns.choose_texts(caption, label, header, where)
        parted = DELIMITERS.get(delimiter, repr(delimiter))
        found = columns.describe(image=image, caption=caption, label=label)
        logging.info("%s: columns parted by %s: %s", path, parted, found)
        slots = [header.index(name) if name else None for name in (image, label, caption)]
        super().__init__(
            path, path.rpartition("/")[0], _make_rows(path, lines, image, slots), bool(caption)
        )


def read_lines(
    path: str, text: str, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each line that has any; the first names the columns."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if cells and not header:
                cells = header = [cell.strip() for cell in cells]
            if len(cells) not in (0, len(header)):
                raise UserError(
                    f"{path}, line {reader.line_num} has {len(cells)} columns and the first line "
                    f"{len(header)}; a text with {delimiter!r} in it goes in double quotes"
                )
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error
    if not header:
        raise UserError(f"{path} is empty; its first line must name the columns")


def find_delimiter(path: str, text: str, wanted: tuple[str | None, ...]) -> str:
    """Finds what parts the first line into most columns that are wanted or have a usual name."""
    line = next(filter(str.strip, io.StringIO(text)), "").strip("\r\n")
    groups = (*columns.FILES, *columns.CAPTIONS, *columns.LABELS)
    usual = {name for group in groups for name in group}

    def count(delimiter: str) -> tuple[int, int, bool]:
        names = [name.strip(' "') for name in line.split(delimiter)]
        known = sum(name in wanted or name.lower() in usual for name in names)
        return known, len(names), delimiter == ("\t" if path.endswith(".tsv") else ",")

    return max(DELIMITERS, key=count)


def _make_rows(
    path: str, lines: Iterator[tuple[int, list[str]]], column: str, slots: list[int | None]
) -> Iterator[Row]:
    line = 0
    for line, cells in lines:
        image, label, caption = ("" if slot is None else cells[slot] for slot in slots)
        if not image.strip():
            raise UserError(f"{path}, line {line} names no image in the column {column!r}")
        yield Row(line, image.strip(), _split_labels(label), [caption])
    if not line:
        raise UserError(f"{path} has no line after the names of the columns")


def _split_labels(cell: str) -> list[str]:
    """Parts a cell at `|`, and at spaces where it holds nothing but integers."""
    words = cell.replace("|", " ").split()
    if all(map(is_integer, words)):
        return words
    return [name for name in map(str.strip, cell.split("|")) if name]
