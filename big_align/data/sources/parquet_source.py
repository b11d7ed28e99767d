"""Parquet files with encoded images in a column, read a row group at a time."""

import concurrent.futures
import os
from typing import Any

import numpy as np
import pyarrow as pa
from absl import logging
from jaxtyping import Int

from big_align.core.errors import UserError, check_at_least, pass_unreachable, put_in_a_line
from big_align.data import columns, examples, files, listing
from big_align.data.column_values import is_binary, is_plain, is_text, write_key
from big_align.data.json_texts import parse_json
from big_align.data.labels.label_names import Names, UnitedNames, unite_names
from big_align.data.row_groups import Place, RowGroups, list_fields, open_table, read_group
from big_align.data.sources import shard_index
from big_align.data.text_members import check_languages, tell_captions

MOST_ROWS = 2**25  # of a row group; a footer can claim any number
FOOTER_THREADS = 16  # reads wait for storage, not for the processor
NO_TABLE = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, LookupError)
"""What pyarrow raises if a file is not what it says."""


class ParquetSource:
    """Examples of Parquet files: img2dataset's, or those of the datasets library.

    A row group is a shard. Row groups are read on demand, and the latest are kept, so memory is
    bounded. Rows without an image, which img2dataset leaves if it could not download one, are
    skipped.

    Reading one image decodes its row group. Files with a few hundred rows per group, as img2dataset
    and datasets write them, can be shuffled at will; for larger groups `data.window` should be no
    more examples than fit in `cache_megabytes`.

    Args:
      path: the files; globs, `{00000..00005}` and comma lists, local or any fsspec or gs:// path;
        or a list of them.
      image: the column of the encoded images: bytes, or a struct of `bytes` and, if these are
        missing, the `path` of a file; None finds it.
      caption: the column of a text or a list of texts, or a field of a struct, `captions.en`; None
        finds it, "" reads none. Languages in braces, `captions.{en,de}`, mean one column each.
      label: the column of the class number or numbers. None finds it if no captions are read; ""
        reads none.
      caption_lines: whether each line of a text is a caption of its own.
      cache_megabytes: size of the decoded row groups that are kept, in each process that reads.
      index_dir: a folder that remembers which rows have images, for the next start.
      key: the column of texts or numbers that identify examples, by which data are held out. None
        takes `key`, which img2dataset writes, or the `path` of a struct; "" takes file and row.
      language: the column of the language of the captions; None if there is none.

    Attributes:
      faults: why rows are left out, a line for each file that lost some.
      other_columns: plain columns of the first file besides images, texts and keys.

    Raises:
      UserError: nothing matches the path, a column is missing or ambiguous, or no row has an
        image.
    """

    def __init__(
        self,
        path: listing.Paths,
        image: str | None = None,
        caption: str | None = None,
        label: str | None = None,
        caption_lines: bool = False,
        cache_megabytes: int = 256,
        index_dir: str | None = None,
        key: str | None = None,
        language: str | None = None,
    ):
        check_at_least(1, cache_megabytes=cache_megabytes)
        paths = listing.expand_paths(path, "*.parquet")
        where, schema = _read_schema(paths)
        self._image = columns.choose_image(image, schema.names, columns.IMAGES, where)
        names = [*schema.names, *list_fields(schema)]
        read = check_languages(caption, language)
        several = [columns.choose("caption", name, names, [], where) for _, name in read]
        caption, self._label = columns.choose_texts("" if read else caption, label, names, where)
        self._captions = read or ([("", caption)] if caption else [])
        self._language = columns.choose("language", language, names, [], where)
        self._parts = _find_parts(schema, self._image, where)
        self._key = columns.choose("key", key, names, [], where)
        if key is None and len(self._parts) > 1:  # the path of the image
            self._key = self._parts[1]
        if key is None and "key" in schema.names and is_text(schema.field("key").type):
            self._key = "key"
        texts = filter(None, (*several, caption, self._label, self._language, self._key))
        self._texts = tuple(dict.fromkeys(texts))
        told = ", ".join(several) or caption
        self.other_columns = tuple(
            field.name for field in schema
            if field.name not in (*self._texts, self._image) and is_plain(field.type)
        )  # fmt: skip
        found = columns.describe(image=self._image, caption=told, label=self._label)
        logging.info("%s: %s", where, found)
        self._united = _unite_names(paths, self._label)
        self.class_names = self._united.names
        self._caption_lines = caption_lines
        indexes = shard_index.index_shards(
            paths, lambda file, size: _index(file, self._parts), f"parquet {self._parts}", index_dir
        )
        self.faults = shard_index.list_faults(paths, indexes)
        self._place_shards(paths, indexes)
        if not self.shard_sizes.sum():
            raise UserError(f"no row of {path!r} has an image in the column {self._image!r}")
        self._names = [os.path.basename(each) for each in paths]
        self._folders = [os.path.dirname(each) for each in paths]
        self._groups = RowGroups(paths, cache_megabytes * 2**20)

    def _place_shards(self, paths: list[str], indexes: list[shard_index.ShardIndex]) -> None:
        """Makes a shard of each row group; a file has at least one, for the count of what it lost.

        The table of a file has the row group, the row in it, and the row in the file.
        """
        self._places: list[Place] = []
        self._rows: list[np.ndarray] = []
        broken = []
        lost = shard_index.count_broken(indexes).tolist()
        for number, index in enumerate(indexes):
            groups, starts = np.unique(index.table[:, 0], return_index=True)
            parts = np.split(index.table[:, 1:], starts[1:])
            self._places += [Place(number, int(group)) for group in groups] or [Place(number, 0)]
            self._rows += parts
            broken += [lost[number], *[0] * (len(parts) - 1)]
        self.shard_sizes = np.array([len(rows) for rows in self._rows], np.int64)
        self.broken = np.array(broken, np.int64)

    @property
    def rows(self) -> Int[np.ndarray, " n"]:
        """The row of each example in its file, counted from 0 with those that have no image."""
        return np.concatenate([each[:, 1] for each in self._rows]).astype(np.int64)

    read = examples.read_in_parts

    def read_image(self, shard: int, index: int) -> bytes:
        image, *path = self._read(shard, index, self._parts)
        if image is None and path and path[0]:
            image = _read_file(path[0], self._folders[self._places[shard].file])
        if not isinstance(image, bytes):
            raise examples.BrokenExample(f"the column {self._image!r} holds no image")
        return image

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        values = dict(zip(self._texts, self._read(shard, index, self._texts), strict=True))
        captions, labels = [], ()
        if self._captions:
            told = values[self._language] if self._language else None
            found = [(tag or told or "", values[name]) for tag, name in self._captions]
            captions = tell_captions(found, self._caption_lines)
        if self._label and values[self._label] is not None:
            labels = examples.clean_labels(values[self._label])
            labels = self._united.renumber(labels, self._places[shard].file)
        return captions, labels

    def read_columns(self, shard: int, index: int, names: tuple[str, ...]) -> list[Any]:
        """Returns the values of other columns of an example, None for one that its file lacks."""
        place = self._places[shard]
        there = tuple(name for name in names if self._groups.has_column(place, name))
        found = dict(zip(there, self._read(shard, index, there), strict=True))
        return [found.get(name) for name in names]

    def key(self, shard: int, index: int) -> str:
        """Returns what the file calls an example, or else the file and the row."""
        if not self._key:
            return self.name(shard, index)
        try:
            key = write_key(self._read(shard, index, self._texts)[self._texts.index(self._key)])
        except examples.BrokenExample:
            key = ""
        if key:
            return key
        file, _, row = self.name(shard, index).partition(": ")
        return f"{row} of {file}"  # the row first: what follows a dot does not count in a key

    def name(self, shard: int, index: int) -> str:
        """Names an example, as in `00003.parquet: row 42`, counted from 0."""
        return f"{self._names[self._places[shard].file]}: row {self._rows[shard][index, 1]}"

    def shard_name(self, shard: int) -> str:
        """Names a row group, as in `00003.parquet, row group 7`."""
        place = self._places[shard]
        return f"{self._names[place.file]}, row group {place.group}"

    def _read(self, shard: int, index: int, names: tuple[str, ...]) -> list[Any]:
        row = int(self._rows[shard][index, 0])
        return self._groups.read(self._places[shard], names, row) if names else []


def _read_schema(paths: list[str]) -> tuple[str, pa.Schema]:
    """Returns the columns of the first file that can be read, and its path."""
    fault = ""
    for path in paths:
        try:
            with files.files_of(path).open(path) as file:
                return path, open_table(file).schema_arrow
        except NO_TABLE as error:
            pass_unreachable(error)
            fault = fault or f"{path} is no whole Parquet file: {put_in_a_line(str(error))}"
    raise UserError(fault)


def _find_parts(schema: pa.Schema, image: str, where: str) -> tuple[str, ...]:
    """Returns the column of the encoded images, or the fields of a struct: `bytes` and `path`."""
    kind = schema.field(image).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        fields = [name for name in ("bytes", "path") if kind.get_field_index(name) >= 0]
        return tuple(f"{image}.{name}" for name in fields)
    if not is_binary(kind):
        raise UserError(
            f"{where}: the column {image!r} holds {kind}, not encoded images; a table that names "
            "files is read by the source imagefolder, and one of addresses by img2dataset"
        )
    return (image,)


def _read_file(path: str, folder: str) -> bytes:
    """Reads a file that a row names, from the current folder or from that of the table."""
    if columns.is_address(path):
        raise examples.BrokenExample(
            f"{path[:60]!r} is an address, not a file; img2dataset downloads it first"
        )
    try:
        beside = f"{folder}/{path}"
        if folder and "://" not in path and not files.is_file(path) and files.is_file(beside):
            path = beside
        return files.files_of(path).read_all(path)
    except (OSError, ValueError) as error:
        raise examples.BrokenExample(f"{path!r} cannot be read: {error}") from error


def _unite_names(paths: list[str], label: str | None) -> UnitedNames:
    """Joins the names that each file has for the classes of a column."""
    if label is None:
        return UnitedNames(None, ())

    def read(path: str) -> Names:
        try:
            with files.files_of(path).open(path) as file:
                return _class_names(open_table(file).schema_arrow, label)
        except NO_TABLE as error:  # a file that is left out, and has no labels
            pass_unreachable(error)
            return ()

    with concurrent.futures.ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return unite_names(list(pool.map(read, paths)), paths)


def _class_names(schema: pa.Schema, label: str) -> Names:
    """Returns the names that the datasets library gives the classes of a column."""
    try:
        noted = parse_json((schema.metadata or {})[b"huggingface"].decode())
        feature = noted["info"]["features"][label]
        names = feature.get("names") or feature.get("feature", {}).get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    named = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if named else None


def _index(file: Any, parts: tuple[str, ...]) -> shard_index.ShardIndex:
    """Lists the rows that have an image: their row group, their place in it and in the file.

    The images are read only if the statistics of a row group do not rule out missing ones.
    """
    rows, first = [np.zeros((0, 3), np.uint32)], 0
    fault = ""
    try:
        table = open_table(file)
        paths = [table.schema.column(n).path for n in range(len(table.schema.names))]
        for group in range(table.num_row_groups):
            described = table.metadata.row_group(group)
            column = described.column(paths.index(parts[0]))
            if not described.num_rows == column.num_values <= MOST_ROWS:
                raise ValueError(
                    f"row group {group} counts {described.num_rows} rows and {column.num_values} "
                    f"images; at most {MOST_ROWS} are read"
                )
            there = np.arange(described.num_rows)
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                read = read_group(table, group, parts)
                held = [np.asarray(values.is_valid()) for values in read.flatten().columns]
                there = there[np.any(held, axis=0)]
            rows.append(np.stack([np.full_like(there, group), there, first + there], axis=1))
            first += described.num_rows
    except NO_TABLE as error:
        pass_unreachable(error)
        fault = f"it is no whole Parquet file with a column {parts[0]!r} ({error})"
    found = np.concatenate(rows).astype(np.uint32)
    if not fault and len(found) < first:
        logging.info("%d of %d rows have no image", first - len(found), first)
    return shard_index.ShardIndex(found, np.array([], "S1"), 0, fault)
