"""An index in LanceDB: in a folder or a bucket, larger than the memory of a machine."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from big_align.core.errors import UserError
from big_align.use.search.stores.on_lance.lance_columns import MetadataColumns
from big_align.use.search.stores.on_lance.lance_search import LanceSearch, LanceSettings
from big_align.use.search.stores.on_lance.lance_tables import (
    LanceTables,
    among,
    as_vectors,
    spell,
    telling,
)
from big_align.use.search.stores.on_lance.lance_writer import open_writer as open_writer
from big_align.use.search.stores.store import CAPTIONS, IMAGES, KINDS, StoredImage


def open_store(place: str) -> "LanceStore":
    """Opens an index to search it."""
    return LanceStore(LanceTables(place, write=False))


class LanceStore:
    """An index in LanceDB as it was when it was opened."""

    def __init__(self, tables: LanceTables):
        self.info = tables.read_info()
        self._place = tables.place
        if self.info is None:
            raise UserError(f"lancedb:{self._place} is no index; big_align.tools.index writes one")
        if not self.info["generation"]:
            raise UserError(
                f"lancedb:{self._place} is not finished: the command that builds it continues "
                "where it stopped"
            )
        self._tables = {kind: tables.open(kind) for kind in KINDS}
        self._metadata = MetadataColumns(self.info["columns"], self._tables[IMAGES])
        self.columns = list(self.info["columns"])
        with telling(self._place):
            self._counts = {kind: table.count_rows() for kind, table in self._tables.items()}
        self._searches = {
            kind: LanceSearch(table, "id" if kind == IMAGES else "number")
            for kind, table in self._tables.items()
        }

    def count(self, kind: str) -> int:
        """Returns how many rows can be searched."""
        return self._counts[kind]

    def search(
        self, kind: str, queries: Float[np.ndarray, "q d"], k: int, filters: Sequence[str] = ()
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns numbers of the nearest whose images meet all filters, and their cosines."""
        noted = self.info["search"][kind]
        settings = None
        if noted["method"] != "exact":
            settings = LanceSettings(*(noted[field] for field in LanceSettings._fields))
        with telling(self._place):
            where = self._metadata.write_where(filters)
            return self._searches[kind].find(queries, k, settings, where)

    def read_images(self, rows: Sequence[int]) -> list[StoredImage]:
        """Returns what is known of images."""
        stored = [self._metadata[name] for name in self.columns]
        found = (
            self._read(IMAGES, among("id", rows), ["id", "name", "captions", *stored])
            if rows
            else []
        )
        if not len(found):
            return []
        metadata = dict(zip(found["id"].to_pylist(), self._metadata.decode(found), strict=True))
        facts = {row["id"]: row for row in found.select(["id", "name", "captions"]).to_pylist()}
        return [
            StoredImage(facts[row]["name"], facts[row]["captions"], metadata[row]) for row in rows
        ]

    def read_captions(
        self, numbers: Sequence[int], filters: Sequence[str]
    ) -> list[tuple[int, str]]:
        """Returns the first image of each caption that meets all filters, and the text."""
        if not numbers:
            return []
        where = self._metadata.write_where(filters)
        told = among("number", numbers) + (f" AND {where}" if where else "")
        first: dict[int, tuple[int, str]] = {}
        for row in self._read(CAPTIONS, told, ["number", "id", "text"]).to_pylist():
            here = row["id"], row["text"]
            first[row["number"]] = min(first.get(row["number"], here), here)
        return [first[number] for number in numbers]

    def read_vector(self, row: int) -> Float[np.ndarray, "d"]:
        """Returns the embedding of an image."""
        return np.float32(as_vectors(self._read(IMAGES, f"id = {row}", ["vector"])["vector"])[0])

    def read_thumbnail(self, row: int) -> bytes:
        """Returns the JPEG of an image; empty if there is none."""
        return self._read(IMAGES, f"id = {row}", ["thumbnail"])["thumbnail"][0].as_py()

    def has_image(self, row: int) -> bool:
        """Returns whether an image has this number."""
        return -(2**63) <= row < 2**63 and bool(len(self._read(IMAGES, f"id = {row}", ["id"])))

    def find_image(self, name: str) -> int | None:
        """Returns the number of an image, None if there is none of this name."""
        found = self._read(IMAGES, f"name = {spell(name)}", ["id"])["id"]
        return found[0].as_py() if len(found) else None

    def list_names(self, most: int) -> list[str]:
        """Returns the names of some images."""
        with telling(self._place):
            found = self._tables[IMAGES].search().select(["name"]).limit(most).to_arrow()
        return found["name"].to_pylist()

    def warm(self) -> None:
        """Loads what searches."""
        for kind in KINDS:
            if self.count(kind):
                self.search(kind, np.eye(1, self.info["dim"], dtype=np.float32), 1)

    def _read(self, kind: str, where: str, columns: list[str]) -> pa.Table:
        with telling(self._place):
            asked = self._tables[kind].search().where(where).select(columns)
            return asked.limit(self._counts[kind]).to_arrow()
