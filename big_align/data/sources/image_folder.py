"""Images that JSON objects name: the datasets library's `imagefolder`, and lists of objects."""

import codecs
import glob
import io
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from absl import logging

from big_align.core.errors import FieldError, UserError, put_in_a_line
from big_align.core.regular_files import open_given
from big_align.data import columns, examples, files, listing
from big_align.data.column_values import is_binary
from big_align.data.json_texts import NotJson, parse_json, read_json
from big_align.data.row_groups import open_table
from big_align.data.sources.csv_source import CsvSource, is_table
from big_align.data.sources.table_source import Row, TableSource
from big_align.data.table_lines import BadLines, read_text_lines, take_separator

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
UNITS = {"json": "object", "parquet": "row"}
"""What is numbered, by the ending of a file; a line in others."""
ROWS = 1024  # of a Parquet file, that are in memory at a time


class JsonObjectsSource(TableSource):
    """Examples of JSON objects, a list or one per line, or rows of Parquet that name images.

    Fields that are not set are found by their usual names, and reported in the log. A caption is a
    text or a list of texts; a label is a number, a name, or a list of these.

    Args:
      path: the file; it and the others are as in `read_image_folder`.

    Raises:
      UserError: the file cannot be used; the message names it, and the line if there is one.
    """

    def __init__(
        self,
        path: str,
        image: str | None = None,
        caption: str | None = None,
        label: str | None = None,
        skip_bad_lines: bool = False,
    ):
        bad = BadLines(path, skip_bad_lines, UNITS.get(_ending(path), "line"))
        objects = list(read_objects(bad))
        names = list(dict.fromkeys(name for _, found in objects for name in found))
        image = columns.choose_image(image, names, columns.FILES, path)
        caption, label = columns.choose_texts(caption, label, names, path)
        found = columns.describe(image=image, caption=caption, label=label)
        logging.info("%s: %s", path, found)
        self.image_column, self.caption_column = image, caption
        made = (_make_row(bad, *each, image, caption, label) for each in objects)
        super().__init__(path, path.rpartition("/")[0], filter(None, made), bool(caption), bad)


def read_image_folder(
    path: str,
    image: str | None = None,
    caption: str | None = None,
    label: str | None = None,
    skip_bad_lines: bool = False,
) -> TableSource:
    """Makes a source from a folder of images with a `metadata.jsonl`, `.csv` or `.parquet`.

    Args:
      path: the folder, or a file: `.jsonl` with one JSON object per line, `.json` with a list of
        them, or `.csv` or `.parquet`.
      image: the column of the image files; None finds it: `file_name`.
      caption: the column of the text or texts; None finds it, "" reads none.
      label: the column of the class or classes. None finds it if no captions are read; ""
        reads none.
      skip_bad_lines: whether lines that cannot be used count as broken examples while the rest is
        read.

    Raises:
      UserError: there is no such file in the folder, or it cannot be used.
    """
    path = os.path.expanduser(path)
    if not path.endswith((".jsonl", ".json", ".csv", ".parquet")):
        path = _find_metadata(path.rstrip("/"))
    source = CsvSource if path.endswith(".csv") else JsonObjectsSource
    return source(path, image=image, caption=caption, label=label, skip_bad_lines=skip_bad_lines)


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
    _, lines = take_separator(enumerate(io.StringIO(text)))
    return "csv" if is_table(next(lines, (0, ""))[1].strip()) else kind


def _find_metadata(folder: str) -> str:
    system = files.files_of(folder)
    for name in METADATA:
        try:
            system.stamp(f"{folder}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        return f"{folder}/{name}"
    message = f"there is no {' or '.join(METADATA)} in the folder {folder}"
    root = glob.escape(folder)
    deeper = sorted(path for name in METADATA for path in listing.find(f"{root}/*/{name}"))
    if deeper:
        raise FieldError(message, path=deeper[0].rpartition("/")[0])
    raise UserError(f"{message}; a folder for each class is read by the source folder")


def read_objects(bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the JSON objects of a file, a list or one per line, or its rows, numbered from 1.

    Args:
      bad: names the file, and takes what is no object.

    Raises:
      UserError: the file cannot be read.
    """
    readers = {"json": _list_objects, "parquet": _read_parquet}
    return readers.get(_ending(bad.path), _read_lines)(bad)


def _ending(path: str) -> str:
    return path.lower().rpartition(".")[2]


def _read_parquet(bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with files.files_of(bad.path).open(bad.path) as file:
            table = open_table(file)
            others = (each for each in table.schema_arrow if not is_binary(each.type))
            read = [each.name for each in others if not pa.types.is_struct(each.type)]
            for batch in table.iter_batches(ROWS, columns=read):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        raise UserError(f"{bad.path} cannot be read: {put_in_a_line(str(error))}") from error


def _read_lines(bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in read_text_lines(bad, "\n"):
        if not (line := line.strip(examples.BLANK)):
            continue
        try:
            found = parse_json(line)
        except NotJson as error:
            bad.add(number, f" {error}")
            continue
        if isinstance(found, dict):
            yield number, found
        else:
            bad.add(number, f" is not a JSON object: {line.strip()[:40]}")


def _list_objects(bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    found = read_json(bad.path)
    if not isinstance(found, list) or not any(isinstance(one, dict) for one in found):
        raise UserError(f"{bad.path} has no list of JSON objects, one for each image")
    for number, one in enumerate(found, 1):
        if isinstance(one, dict):
            yield number, one
        else:
            bad.add(number, f" is not a JSON object: {str(one)[:40]}")


def _make_row(
    bad: BadLines,
    line: int,
    found: dict[str, Any],
    image: str,
    caption: str | None,
    label: str | None,
) -> Row | None:
    name = found.get(image)
    if not isinstance(name, str) or not name.strip():
        bad.add(line, f" names no image in the field {image!r}")
        return None
    labels = found.get(label) if label else None
    labels = labels if isinstance(labels, list) else [] if labels is None else [labels]
    for one in labels:
        if isinstance(one, bool) or not isinstance(one, int | str):
            bad.add(line, f": the label is {str(one)[:40]!r}, not an integer or a name")
            return None
    texts = found.get(caption) if caption else None
    texts = texts if isinstance(texts, list) else [] if texts is None else [texts]
    # reported when it is read: one broken example must not end a run
    texts = [str(text) if type(text) is int else text for text in texts]  # a title can be 1984
    strange = [text for text in texts if not isinstance(text, str)]
    fault = _explain_caption(strange[0]) if strange else ""
    captions = [text for text in texts if isinstance(text, str)]
    return Row(line, name.strip(), [str(one) for one in labels], captions, fault)


def _explain_caption(found: Any) -> str:
    """Says what is wrong with a caption that is not a text."""
    try:
        examples.clean_captions(found)
    except examples.BrokenExample as error:
        return str(error)
    return f"the caption has the list {str(found)[:40]} inside a list"
