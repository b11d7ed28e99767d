"""A table of image files with labels, captions or both."""

import csv
import io
import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from big_align.data import examples, files
from big_align.data.sources.listed_source import ListedSource
from big_align.errors import UserError


class Row(NamedTuple):
    """What a line of the table says."""

    line: int
    image: str
    labels: list[str]
    caption: str


class CsvSource(ListedSource):
    """Examples of a CSV or TSV file whose first line names the columns.

    Labels are integers on all lines, or names on all lines; the label of a name is its place among
    the sorted names of the file. Where a line leaves the label empty, the example has none. Several
    are parted by `|`, as in `dog|potted plant`, and integers also by spaces, as in `11 15`.

    Args:
      path: the table, UTF-8, local or of any fsspec file system.
      image: the column of the image files, relative to the folder of the table.
      label: the column of the class or classes; None reads none.
      caption: the column of the text; None reads none.
      delimiter: what parts the columns; None is a tab in .tsv files and else a comma.

    Raises:
      UserError: names the file, and the line where there is one: it cannot be read, a column is
        missing, a line has other columns, no image, or a label that is not like the others.
    """

    def __init__(
        self,
        path: str,
        image: str = "image",
        label: str | None = None,
        caption: str | None = None,
        delimiter: str | None = None,
    ):
        delimiter = delimiter or ("\t" if path.endswith(".tsv") else ",")
        rows = list(_read_rows(path, (image, label, caption), delimiter))
        if not rows:
            raise UserError(f"{path} has no line after the names of the columns")
        folder = path.rpartition("/")[0]
        images = [_join(folder, row.image) for row in rows]
        self._check_first(path, rows[0], images[0])
        labels, class_names = _number_labels(path, rows)
        super().__init__(
            path.rpartition("/")[2],
            images,
            labels,
            captions=[row.caption for row in rows] if caption else None,
            class_names=class_names,
            lines=[row.line for row in rows],
        )

    def _check_first(self, path: str, row: Row, image: str) -> None:
        """Tells a wrong folder from a broken image."""
        try:
            files.files_of(image).stamp(image)
        except FileNotFoundError as error:
            raise UserError(
                f"{path}, line {row.line}: there is no file {image}; images are relative to the "
                "folder of the table"
            ) from error
        except (OSError, ValueError):  # such as a path with a zero byte: that line alone is broken
            pass

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Returns caption and labels; raises BrokenExample where the caption is empty."""
        captions, labels = super().read_text(shard, index)
        return examples.clean_captions(captions) if captions else [], labels


def _read_rows(
    path: str, columns: tuple[str | None, ...], delimiter: str
) -> Iterator[Row]:
    """Yields the lines of a table."""
    text = io.StringIO(_read_text(path), newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for fields in reader:
            if not fields:
                continue
            if not header:
                header = [field.strip() for field in fields]
                slots = _find_columns(path, columns, header)
                continue
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise UserError(
                    f"{where} has {len(fields)} columns and the first line {len(header)}; a text "
                    f"with {delimiter!r} in it goes in double quotes"
                )
            image, label, caption = ("" if slot is None else fields[slot] for slot in slots)
            if not image.strip():
                raise UserError(f"{where} names no image in the column {columns[0]!r}")
            yield Row(reader.line_num, image.strip(), _split_labels(label), caption)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error


def _read_text(path: str) -> str:
    try:
        with files.files_of(path).open(path) as file:
            data = file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line} is not UTF-8: {error}") from error


def _find_columns(
    path: str, columns: tuple[str | None, ...], header: list[str]
) -> list[int | None]:
    for column in columns:
        if column and column not in header:
            raise UserError(
                f"{path} has no column {column!r}; its first line names {', '.join(header)}"
            )
    return [header.index(column) if column else None for column in columns]


def _split_labels(cell: str) -> list[str]:
    """Parts a cell at `|`, and at spaces where it holds nothing but integers."""
    words = cell.replace("|", " ").split()
    if all(map(_is_integer, words)):
        return words
    return [name for name in map(str.strip, cell.split("|")) if name]


def _number_labels(
    path: str, rows: list[Row]
) -> tuple[list[tuple[int, ...]], tuple[str, ...] | None]:
    """Returns the labels of each row, and the names of the labels where they are names."""
    found = [(row.line, label) for row in rows for label in row.labels]
    if not found:
        return [()] * len(rows), None
    integers = _is_integer(found[0][1])
    for line, label in found:
        if _is_integer(label) != integers:
            raise UserError(
                f"{path}, line {line}: the label is {label!r} and that of line {found[0][0]} is "
                f"{found[0][1]!r}; labels are integers on all lines or names on all lines"
            )
    if not integers:
        names = sorted({label for _, label in found})
        numbers = {name: number for number, name in enumerate(names)}
        numbered = ([numbers[name] for name in row.labels] for row in rows)
        return list(map(examples.clean_labels, numbered)), tuple(names)
    labels = []
    for row in rows:
        try:
            labels.append(examples.clean_labels(row.labels))
        except examples.WrongLabel as error:
            raise UserError(f"{path}, line {row.line}: {error}") from error
    return labels, None


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _join(folder: str, image: str) -> str:
    """Puts the folder of the table before a relative path."""
    return image if "://" in image else posixpath.join(folder, image)
