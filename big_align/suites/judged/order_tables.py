"""ARO's captions of COCO and Flickr30k with their words in other orders, as Parquet tables."""

import hashlib

import numpy as np
import pyarrow as pa

from big_align.core.errors import UserError
from big_align.data import boundary, files, listing
from big_align.data.examples import BrokenExample, Source
from big_align.data.row_groups import open_table
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.sources.parquet_source import ParquetSource
from big_align.suites.judged.judgments import Choices, Numbering
from big_align.suites.judged.sources import PickedSource

OPTIONS = ("correct_caption", *(f"hard_text_{n}" for n in range(1, 5)))
"""Columns: the caption, and four other orders of its words."""


def read_order_tables(pattern: str) -> Choices:
    """Reads tables whose rows have a caption, its image, and four other orders of its words.

    The authors' code shuffles words at random with the taggers of its time; these tables store its
    results. Rows with the same image are merged into one image.
    """
    source = ParquetSource(pattern, image="images", caption="", label="", key="")
    texts, cases = Numbering(), []
    for path in listing.expand_paths(pattern):
        cases += _read_texts(path, texts)
    if len(cases) != source.shard_sizes.sum():
        raise UserError(
            f"{pattern} has {len(cases)} captions and {source.shard_sizes.sum()} images; each row "
            "has one of both"
        )
    picked, image = _find_images(source)
    return Choices(
        PickedSource(source, picked), texts.items, image[:, None], np.array(cases, np.int64),
        ("",) * len(cases),
    )  # fmt: skip


def _read_texts(path: str, texts: Numbering) -> list[tuple[int, ...]]:
    try:
        with files.files_of(path).open(path) as file:
            table = open_table(file)
            if missing := [name for name in OPTIONS if name not in table.schema_arrow.names]:
                raise UserError(
                    f"{path} has no column {missing[0]}; it needs {', '.join(OPTIONS)} and images"
                )
            columns = table.read(columns=list(OPTIONS)).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    rows = list(zip(*(columns[name] for name in OPTIONS), strict=True))
    for number, row in enumerate(rows):
        for name, text in zip(OPTIONS, row, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{path}: row {number} has no text in {name}")
    return [tuple(texts.add(" ".join(text.split())) for text in row) for row in rows]


def _find_images(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first row of each image, and the image of each row."""
    offsets, digests = ShardOffsets(source.shard_sizes), []
    for number in range(offsets.count):
        try:
            data = boundary.read_example(source, *offsets.locate_one(number)).image
        except BrokenExample:  # counts as an image of its own; reported when it is embedded
            data = str(number).encode()
        digests.append(hashlib.sha256(data).digest())
    _, first, image = np.unique(np.array(digests), return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))  # images in the order of their first rows
    return np.sort(first), place[image.reshape(-1)]
