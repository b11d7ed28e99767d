"""Parquet files with encoded images in a column, read a row group at a time."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging

from big_align.data import columns, examples, files
from big_align.data.row_groups import Place, RowGroups
from big_align.data.sources import shard_index
from big_align.errors import UserError


class ParquetSource:
    """Examples of Parquet files: img2dataset's, or those of the library datasets.

    A row group is a shard. Row groups are read when an example of them is asked for, and the last
    ones kept, so memory is bounded. Rows without an image, which img2dataset leaves where it could
    not download one, are passed over.

    Reading one image decodes its row group. Files that keep some hundred rows in a group, as
    img2dataset and datasets write them, can be shuffled at will; for larger groups `data.window`
    should be no more examples than `cache_megabytes` hold.

    Args:
      path: the files; globs, `{00000..00005}` and comma lists, local or any fsspec or gs:// path;
        or a list of them.
      image: the column of the encoded images: bytes, or a struct of `bytes` and, where these are
        missing, the `path` of a file; None finds it.
      caption: the column of a text or a list of texts, or a field of a struct, `captions.en`; None
        finds it, "" reads none.
      label: the column of the class number or numbers. None finds it where no captions are read; ""
        reads none.
      caption_lines: whether each line of a text is a caption of its own.
      cache_megabytes: of decoded row groups that are kept, in each process that reads.
      index_dir: a folder that keeps for the next start which rows have images.

    Raises:
      UserError: nothing matches the path, a column is missing or cannot be told, or no row has an
        image.
    """

    def __init__(
        self,
        path: files.Paths,
        image: str | None = None,
        caption: str | None = None,
        label: str | None = None,
        caption_lines: bool = False,
        cache_megabytes: int = 256,
        index_dir: str | None = None,
    ):
        if cache_megabytes < 1:
            raise UserError(f"cache_megabytes is {cache_megabytes}; it must be at least 1")
        paths = files.expand_paths(path)
        where, schema = _read_schema(paths)
        self._image = columns.choose_image(image, schema.names, columns.IMAGES, where)
        names = [*schema.names, *_list_fields(schema)]
        self._caption, self._label = columns.choose_texts(caption, label, names, where)
        self._parts = _find_parts(schema, self._image, where)
        found = columns.describe(image=self._image, caption=self._caption, label=self._label)
        logging.info("%s: %s", where, found)
        self.class_names = _class_names(schema, self._label)
        self._caption_lines = caption_lines
        indexes = shard_index.index_shards(
            paths,
            lambda file, size: _index(file, self._parts),
            f"parquet {self._parts}",
            index_dir,
        )
        self._place_shards(paths, indexes)
        if not self.shard_sizes.sum():
            raise UserError(f"no row of {path!r} has an image in the column {self._image!r}")
        self._names = [os.path.basename(each) for each in paths]
        self._groups = RowGroups(paths, cache_megabytes * 2**20)

    def _place_shards(self, paths: list[str], indexes: list[shard_index.ShardIndex]) -> None:
        """Makes a shard of each row group; a file has one at least, for the count of what it lost.

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

    def read(self, shard: int, index: int) -> examples.Example:
        """Reads an example; raises BrokenExample."""
        captions, labels = self.read_text(shard, index)
        row = int(self._rows[shard][index, 0])
        image, *path = self._groups.read(self._places[shard], self._parts, row)
        if image is None and path and path[0]:
            image = _read_file(path[0])
        if not isinstance(image, bytes):
            raise examples.BrokenExample(f"the column {self._image!r} holds no image")
        return examples.Example(self.key(shard, index), image, captions, labels)

    def read_text(self, shard: int, index: int) -> tuple[list[str], tuple[int, ...]]:
        """Reads captions and labels without the image; raises BrokenExample."""
        names = tuple(dict.fromkeys(filter(None, (self._caption, self._label))))
        if not names:
            return [], ()
        row = int(self._rows[shard][index, 0])
        values = dict(zip(names, self._groups.read(self._places[shard], names, row), strict=True))
        captions, labels = [], ()
        if self._caption:
            captions = examples.clean_captions(values[self._caption], self._caption_lines)
        if self._label and values[self._label] is not None:
            labels = examples.clean_labels(values[self._label])
        return captions, labels

    def key(self, shard: int, index: int) -> str:
        """Returns the file and the row."""
        return self.name(shard, index)

    def name(self, shard: int, index: int) -> str:
        """Names an example, as in `00003.parquet: row 42`, counted from 0."""
        return f"{self._names[self._places[shard].file]}: row {self._rows[shard][index, 1]}"

    def shard_name(self, shard: int) -> str:
        """Names a row group, as in `00003.parquet, row group 7`."""
        place = self._places[shard]
        return f"{self._names[place.file]}, row group {place.group}"


def _read_schema(paths: list[str]) -> tuple[str, pa.Schema]:
    """Returns the columns of the first file that can be read, and its path."""
    fault = ""
    for path in paths:
        try:
            with files.files_of(path).open(path) as file:
                return path, pq.ParquetFile(file).schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:
            fault = fault or f"{path} is no whole Parquet file: {error}"
    raise UserError(fault)


def _list_fields(schema: pa.Schema) -> list[str]:
    """Lists the fields of structs, as `captions.en`."""
    structs = [field for field in schema if pa.types.is_struct(field.type)]
    return [f"{struct.name}.{field.name}" for struct in structs for field in struct.type]


def _find_parts(schema: pa.Schema, image: str, where: str) -> tuple[str, ...]:
    """Returns the column of the encoded images, or the fields of a struct: `bytes` and `path`."""
    kind = schema.field(image).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        fields = [name for name in ("bytes", "path") if kind.get_field_index(name) >= 0]
        return tuple(f"{image}.{name}" for name in fields)
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(
            f"{where}: the column {image!r} holds {kind}, not encoded images; a table that names "
            "files is read as CSV by the source csv, and one of addresses by img2dataset"
        )
    return (image,)


def _read_file(path: str) -> bytes:
    try:
        with files.files_of(path).open(path) as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise examples.BrokenExample(f"{path!r} cannot be read: {error}") from error


def _class_names(schema: pa.Schema, label: str | None) -> tuple[str, ...] | None:
    """Returns what the library datasets calls the classes of a column."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])
        feature = noted["info"]["features"][label]
        names = feature.get("names") or feature.get("feature", {}).get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return tuple(names) if names else None


def _index(file: files.ReadableFile, parts: tuple[str, ...]) -> shard_index.ShardIndex:
    """Lists the rows that have an image: their row group, their place in it and in the file.

    The images are looked at only where the statistics of a row group count missing ones.
    """
    rows, first = [np.zeros((0, 3), np.uint32)], 0
    fault = ""
    try:
        table = pq.ParquetFile(file)
        paths = [table.schema.column(n).path for n in range(len(table.schema.names))]
        for group in range(table.num_row_groups):
            described = table.metadata.row_group(group)
            there = np.arange(described.num_rows)
            statistics = described.column(paths.index(parts[0])).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                read = table.read_row_group(group, columns=list(parts), use_threads=False)
                held = [np.asarray(values.is_valid()) for values in read.flatten().columns]
                there = there[np.any(held, axis=0)]
            rows.append(np.stack([np.full_like(there, group), there, first + there], axis=1))
            first += described.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        fault = f"it is no whole Parquet file with a column {parts[0]!r} ({error})"
    found = np.concatenate(rows).astype(np.uint32)
    if not fault and len(found) < first:
        logging.info("%d of %d rows have no image", first - len(found), first)
    return shard_index.ShardIndex(found, np.array([], "S1"), 0, fault)
