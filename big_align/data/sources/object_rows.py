"""Rows of tables that are objects: JSON, a list or one per line, and Parquet."""

import glob
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from big_align.core.errors import FieldError, UserError, put_in_a_line
from big_align.data import examples, files, listing
from big_align.data.column_values import is_binary
from big_align.data.json_texts import NotJson, parse_json, read_json
from big_align.data.row_groups import open_table
from big_align.data.sources.table_source import Row
from big_align.data.table_lines import BadLines, read_text_lines

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
UNITS = {".jsonl": "line", ".json": "object", ".parquet": "row"}
"""The endings of such tables, and what is numbered in them."""
ROWS = 1024  # of a Parquet file, that are in memory at a time


def find_metadata(folder: str) -> str:
    """Returns the table in a folder of the datasets library's `imagefolder`; or UserError."""
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
    """Yields the objects of a table, numbered from 1; what is no object goes to `bad`."""
    readers = {"json": _list_objects, "parquet": _read_parquet}
    return readers.get(bad.path.lower().rpartition(".")[2], _read_lines)(bad)


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


def make_row(
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
    try:
        examples.clean_captions(found)
    except examples.BrokenExample as error:
        return str(error)
    return f"the caption has the list {str(found)[:40]} inside a list"
