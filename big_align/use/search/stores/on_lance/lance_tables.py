"""The tables of an index in LanceDB: how they are reached, and what is written in SQL.

`images` has a row for each image, and `captions` one for each caption of each image, so that what
filters compare stands in both. A row belongs to an image by its `id`, which is never used again. A
caption's `number` is the digest of its text. `index` has one row: what the index says about itself.
"""

import contextlib
import json
import os
import pathlib
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
from jaxtyping import Float

from big_align.core import formats
from big_align.core.errors import UserError, put_in_a_line
from big_align.use.search.stores.store import CAPTIONS, IMAGES, KINDS

KIND = "search index in LanceDB"
INDEX = "index"
SHOWN = 300  # characters of what the engine says
SERVER = re.compile(r"[a-z0-9]+://")
OPTIONS = {"connect_timeout": "10 seconds", "client_max_retries": "5", "client_retry_timeout": "60"}
"""Of a bucket: a server that does not answer is told of after a minute at most."""


@contextlib.contextmanager
def telling(place: str) -> Iterator[None]:
    """Makes a UserError of what the engine raises, which has no types of errors of its own."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if not any(f.f_globals.get("__name__", "").startswith("lancedb") for f in frames):
            raise
        said = put_in_a_line(str(error))
        said = f"{said[:SHOWN]}..." if len(said) > SHOWN else said
        raise UserError(
            f"lancedb:{place}: {said}; once this is mended, the same command continues"
        ) from error


class LanceTables:
    """The tables at a place, a folder or a bucket."""

    def __init__(self, place: str, write: bool):
        self.place = place if SERVER.match(place) else str(pathlib.Path(place).expanduser())
        if not SERVER.match(place) and not write and not os.path.isdir(self.place):
            raise UserError(f"lancedb:{place} is no index; big_align.tools.index writes one")
        self._options = dict(OPTIONS)
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:"):
            self._options["allow_http"] = "true"
        with telling(self.place):
            options = self._options if SERVER.match(place) else None
            self._database = lancedb.connect(self.place, storage_options=options)
            self.names = set(self._database.list_tables().tables)

    def open(self, name: str) -> Any:
        """Opens a table as it is now."""
        with telling(self.place):
            return self._database.open_table(name)

    def read_info(self) -> dict[str, Any] | None:
        """Returns what the index says about itself, None if there is none."""
        if INDEX not in self.names:
            return None
        with telling(self.place):
            rows = self.open(INDEX).search().limit(1).to_arrow().to_pylist()
        info = json.loads(rows[0]["info"]) if rows and "info" in rows[0] else {}
        formats.check(KIND, info, f"lancedb:{self.place}")
        if "generation" not in info:
            raise UserError(f"lancedb:{self.place}: its table {INDEX!r} is not one of an index")
        return info

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replaces what the index says about itself."""
        row = {"info": json.dumps(formats.stamp(KIND, info))}
        with telling(self.place):
            mode = "overwrite" if INDEX in self.names else "create"
            self._database.create_table(INDEX, [row], mode=mode)
        self.names.add(INDEX)

    def create(self, dim: int, dtype: str) -> None:
        """Makes the tables of rows, unless they are there."""
        vector = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), dim)
        schemas = {
            IMAGES: {
                "id": pa.int64(), "name": pa.string(), "key": pa.string(),
                "signature": pa.string(), "captions": pa.list_(pa.string()),
                "thumbnail": pa.binary(), "vector": vector,
            },
            CAPTIONS: {
                "id": pa.int64(), "number": pa.int64(), "text": pa.string(), "vector": vector,
            },
        }  # fmt: skip
        with telling(self.place):
            for kind in sorted({*KINDS} - self.names):
                schema = pa.schema(list(schemas[kind].items()))
                self._database.create_table(kind, schema=schema)


@contextlib.contextmanager
def as_dataset(table: Any) -> Iterator[lance.LanceDataset]:
    """Yields a table as pylance has it, which can do more; then the table sees what it did."""
    yield table.to_lance()
    table.checkout_latest()


def as_vectors(column: pa.ChunkedArray | pa.Array) -> Float[np.ndarray, "n d"]:
    """Returns a column of embeddings as an array."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.flatten().to_numpy().reshape(len(array), array.type.list_size)


def as_column(vectors: Float[np.ndarray, "n d"]) -> pa.Array:
    """Returns embeddings as a column."""
    values = pa.array(np.ascontiguousarray(vectors).ravel())
    return pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])


def spell(value: Any) -> str:
    """Writes a value in SQL."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    return str(value).lower()


def among(column: str, values: Iterable[Any]) -> str:
    """Writes that a column has one of these values, of which there is at least one."""
    return f"{column} IN ({', '.join(map(spell, values))})"
