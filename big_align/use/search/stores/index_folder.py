"""The folder of an index: what is in it, how it is read, and how it changes all at once.

`index.json` names a generation, a folder with everything that is searched. A generation is never
changed: a run that has something new writes the next one whole, and then replaces `index.json`.
Whatever is not named there was left by a stopped run. `index.json` has the checksums of a
generation's files, which are compared when it is read; a thumbnail's is compared when it is shown.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float

from big_align.core import file_checksums, formats
from big_align.core.errors import UserError, put_in_a_line
from big_align.core.file_checksums import SEAL
from big_align.core.regular_files import check_regular
from big_align.core.whole_files import write_whole
from big_align.data.precomputed.shard_files import read_description
from big_align.use.search.stores.store import KINDS

KIND = "search index"
INFO = "index.json"
METADATA, THUMBNAILS = "metadata.parquet", "thumbnails.bin"
FIELDS = ("model", "weights", "architecture", "transform", "dim", "dtype", "thumbnail")
FIELDS += ("generation", "search", "files")
TEXTS = ("model", "weights", "transform", "dtype")
"""Fields that are texts, or null."""


@dataclasses.dataclass
class IndexGeneration:
    """Everything that is searched.

    Images have `name`, `key`, `signature`, the numbers of their `captions`, and the `end` and the
    `crc32` of their thumbnails, which are JPEG files, concatenated. Vectors have unit length;
    captions have none if the model embeds no texts.
    """

    images: pa.Table
    captions: pa.Table  # `text`, each once
    metadata: pa.Table  # the columns that filters compare, one row per image
    vectors: dict[str, Float[np.ndarray, "_ d"]]  # by kind, memory-mapped
    thumbnails: np.ndarray

    def read_thumbnail(self, row: int) -> bytes:
        """Returns the JPEG of an image; empty if thumbnails were not wanted.

        Raises:
          UserError: it is not what was written.
        """
        ends = self.images["end"]
        jpeg = self.thumbnails[ends[row - 1].as_py() if row else 0 : ends[row].as_py()].tobytes()
        if zlib.crc32(jpeg) != self.images["crc32"][row].as_py():
            where = getattr(self.thumbnails, "filename", THUMBNAILS)
            raise UserError(
                f"{where}: the thumbnail of row {row} is not what was written (CRC-32); remove the "
                "index and build it again"
            )
        return jpeg


def read_info(folder: pathlib.Path) -> dict[str, Any]:
    """Reads what an index says about itself."""
    path = folder / INFO
    if not path.is_file():
        raise UserError(
            f"{folder} is no index (it has no {INFO}); big_align.tools.index writes one"
        )
    info = read_description(path, KIND, FIELDS)
    if strange := [field for field in TEXTS if not isinstance(info[field], str | None)]:
        raise UserError(f"{path}: `{strange[0]}` is no text; it is not as it was written")
    if not isinstance(info["files"], dict):
        raise UserError(f"{path}: `files` is no object; it is not as it was written")
    if SEAL in info and not file_checksums.is_sealed(info):
        raise UserError(
            f"{path} is not as it was written (its {SEAL}): copy or build the index again, or "
            f"remove {SEAL} if it was changed on purpose"
        )
    return info


def write_info(folder: pathlib.Path, info: dict[str, Any]) -> None:
    """Replaces what an index says about itself, as a whole."""
    sealed = file_checksums.seal(formats.stamp(KIND, info))
    text = json.dumps(sealed, indent=1, ensure_ascii=False)
    write_whole(folder / INFO, f"{text}\n".encode("utf-8", "backslashreplace"))


def generation_folder(folder: pathlib.Path, info: dict[str, Any]) -> pathlib.Path:
    """Returns where the generation of an index is."""
    number = info["generation"]
    if type(number) is not int or number < 1:
        raise UserError(
            f"{folder} is not finished: the command that builds it continues where it stopped"
        )
    return folder / f"{number:06d}"


def add_up_generation(path: pathlib.Path) -> dict[str, list[int]]:
    """Returns sizes and checksums of the files of a generation, for `files` of `index.json`."""
    names = [name for name in file_checksums.list_files(path) if name != THUMBNAILS]
    return file_checksums.add_up(path, names)


def read_generation(path: pathlib.Path, files: Mapping[str, Sequence[int]]) -> IndexGeneration:
    """Reads a generation; embeddings and thumbnails are memory-mapped.

    The files are compared with their sizes and checksums; those that have none are not.
    """
    try:
        if fault := file_checksums.find_fault(path, files):
            raise ValueError(fault)
        check_regular(path / THUMBNAILS)
        empty = not (path / THUMBNAILS).stat().st_size  # which cannot be mapped
        found = IndexGeneration(
            *(pq.read_table(path / f"{name}.parquet") for name in KINDS),
            pq.read_table(path / METADATA),
            {kind: np.load(path / f"{kind}.npy", mmap_mode="r") for kind in KINDS},
            np.zeros(0, np.uint8) if empty else np.memmap(path / THUMBNAILS, np.uint8, "r"),
        )
        if len(found.images) and found.images["end"][-1].as_py() != len(found.thumbnails):
            raise ValueError(f"{THUMBNAILS} is not whole")
    except (OSError, EOFError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        reason = put_in_a_line(str(error))
        raise UserError(
            f"{path} cannot be read ({reason}); remove the index and build it again"
        ) from error
    return found


def open_generation(
    folder: pathlib.Path,
) -> tuple[dict[str, Any], pathlib.Path, IndexGeneration]:
    """Returns what an index says about itself, where its generation is, and what is in it.

    If another process replaces the generation meanwhile, the new one is opened.
    """
    while True:
        info = read_info(folder)
        path = generation_folder(folder, info)
        try:
            return info, path, read_generation(path, info["files"])
        except UserError:
            if read_info(folder)["generation"] == info["generation"]:
                raise


def remove_others(folder: pathlib.Path, keep: int) -> None:
    """Removes every generation but one; the others are old, or were left by a stopped run."""
    for path in folder.iterdir():
        if path.is_dir() and path.name.isdecimal() and int(path.name) != keep:
            shutil.rmtree(path)


def sync(path: pathlib.Path) -> None:
    """Waits until a file is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
