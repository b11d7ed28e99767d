"""Kinds of input that a user may hand over, and what can be wrong with them.

A kind is an entry of `KINDS`: how a small intact one is written, how all of it is read as training
and evaluation would, and faults that must not go unnoticed. Bytes are mutated alike for all.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import example_kinds as examples
import file_kinds
import folder_kinds as folders
import index_kinds as indexes
import list_kinds as lists
import table_kinds as tables
from example_kinds import Path, Random, Spoil, vary


class Kind(NamedTuple):
    """A kind of input.

    Attributes:
      write: makes an intact one in an empty folder.
      read: returns all that is read of it, as JSON holds it, and how many examples are broken.
      spoil: faults that must not go unnoticed.
      sealed: whether checksums guard it: what is read must be what was written.
      tensorflow: whether it is read by TensorFlow.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], tuple[Any, int]]
    spoil: Sequence[Spoil] = ()
    sealed: bool = False
    tensorflow: bool = False


ROWS = tables.ROW_CHANGES
KINDS = {
    "tar": Kind(examples.write_members(), examples.read_tar, examples.TAR_FAULTS),
    "csv": Kind(examples.write_csv, examples.read_csv, examples.CSV_FAULTS),
    "tfrecord": Kind(
        examples.write_records, examples.read_records, examples.RECORD_FAULTS, True, True
    ),
    "npz": Kind(examples.write_npz, examples.read_npz, examples.ARRAY_FAULTS, sealed=True),
    "folder": Kind(folders.write_folder, folders.read_folder, folders.FOLDER_FAULTS),
    "images": Kind(folders.write_images, folders.read_folder, [folders.bomb]),
    "classes.json": Kind(
        lists.write_classes("json"), lists.read_class_list("json"), lists.CLASS_FAULTS
    ),
    "classes.csv": Kind(lists.write_classes("csv"), lists.read_class_list("csv")),
    "classes.txt": Kind(lists.write_classes("txt"), lists.read_class_list("txt")),
    "tags": Kind(lists.write_tags, lists.read_tags, lists.TAG_FAULTS),
    "embeddings": Kind(lists.write_embedded, lists.read_embedded, lists.EMBEDDING_FAULTS),
    "index": Kind(indexes.write_index, indexes.read_index, indexes.FAULTS, sealed=True),
    "csv.rows": Kind(
        tables.write_table, tables.read_as("csv", "x.csv"), vary(tables.write_table, ROWS)
    ),
    "imagefolder.csv": Kind(
        tables.write_metadata, tables.read_as("imagefolder", ""), vary(tables.write_metadata, ROWS)
    ),
    "imagefolder.parquet": Kind(
        tables.write_metadata_rows,
        tables.read_as("imagefolder", "", label="label"),
        vary(tables.write_metadata_rows, tables.METADATA_CHANGES),
    ),
    "imagefolder.jsonl": Kind(
        tables.write_lines,
        tables.read_as("imagefolder", "", label="label"),
        vary(tables.write_lines, tables.LINE_CHANGES),
    ),
    "coco": Kind(tables.write_coco, tables.read_as("coco", "captions.json"), tables.COCO_FAULTS),
    "files": Kind(
        tables.write_files,
        tables.read_as("files", "x", caption="json.caption", label="json.label"),
        tables.FILE_FAULTS,
    ),
    "tar.lines": Kind(
        tables.write_many_lines,
        tables.read_as("tar", "x.tar", caption_lines=True),
        vary(tables.write_many_lines, tables.LINES),
    ),
    "tar.lists": Kind(
        tables.write_lists,
        tables.read_as("tar", "x.tar", caption="json.caption"),
        vary(tables.write_lists, tables.LISTS),
    ),
    "parquet": Kind(
        tables.write_parquet,
        tables.read_as("parquet", "*.parquet", label="label"),
        tables.PARQUET_FAULTS,
    ),
    "wordpieces": Kind(
        file_kinds.write_tokenizer(file_kinds.SPECIAL_TOKENS),
        file_kinds.read_wordpieces,
        file_kinds.WORDPIECE_FAULTS,
    ),
    "byte pairs": Kind(
        file_kinds.write_tokenizer(file_kinds.ROBERTA),
        file_kinds.read_roberta,
        file_kinds.ROBERTA_FAULTS,
    ),
    "vocab.txt": Kind(
        file_kinds.write_lines_of_pieces, file_kinds.read_lines_of_pieces, file_kinds.LINE_FAULTS
    ),
    "merges.gz": Kind(file_kinds.write_merges, file_kinds.read_merges, file_kinds.MERGE_FAULTS),
    **{
        f"metadata.{ending}": Kind(
            file_kinds.write_facts(ending), file_kinds.read_facts(ending), faults
        )
        for ending, faults in file_kinds.FACT_FAULTS.items()
    },
    "metadata.parquet": Kind(
        file_kinds.write_parquet_facts,
        file_kinds.read_facts("parquet"),
        file_kinds.FACT_FAULTS["parquet"],
    ),
    "metadata.utf-16": Kind(file_kinds.write_facts("csv", "utf-16"), file_kinds.read_facts("csv")),
    "jsonl.facts": Kind(tables.write_lines, file_kinds.read_source_facts),
}
"""By name. A kind of input more is a line here."""


TOKENS = (
    b"NaN", b"-1", b"1e999", b"\0", b"9" * 5000, b"[" * 100_000, b'"', b"\n", b",", b"\xff\xfe",
    b"\\ud800", b"\0" * 512, b"\xff" * 8, b"null", b"\x80", b"\xef\xbb\xbf", b"{}", b"PK\3\4",
)  # fmt: skip


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Flips, overwrites, cuts, inserts, repeats or moves some bytes."""
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    if rng.random() < 0.7:
        end = min(end, start + rng.choice((1, 2, 8, 64)))
    piece = data[start:end]
    flipped = bytearray(data)
    if data:
        flipped[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)
    return rng.choice(
        (
            bytes(flipped),
            bytes(flipped),
            data[:start],
            data[:start] + data[end:],
            data[:start] + piece + data[start:],
            data[:start] + rng.choice(TOKENS) + data[end:],
            data[:start] + rng.choice((b"\0", b"\xff", b" ")) * len(piece) + data[end:],
            data[:start] + rng.randbytes(len(piece)) + data[end:],
            data[:start] + piece[::-1] + data[end:],
            data + b"\0" * rng.choice((1, 16, 512, 10_240, 2**20)),
            data + data,
            data + rng.choice(TOKENS),
            b"",
        )
    )


def mutate(kind: str, folder: Path, rng: Random) -> bool:
    """Breaks an intact input; returns whether that must be noticed."""
    spoil = KINDS[kind].spoil
    if spoil and rng.random() < 0.4:
        rng.choice(spoil)(folder, rng)
        return True
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    path = rng.choice(files)
    if rng.random() < 0.08:
        path.unlink()
        rng.choice(folders.STRANGERS)(path)
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    return False
