"""An index in a folder of this machine, all of which one process searches and writes."""

import functools
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError
from big_align.use.search.stores.exact_search import rescore, search_exactly
from big_align.use.search.stores.filters import TableColumns, apply_filters
from big_align.use.search.stores.folder_writer import open_writer as open_writer
from big_align.use.search.stores.index_folder import INFO, open_generation, read_info
from big_align.use.search.stores.recall import K
from big_align.use.search.stores.scann_rows import ScannRows, ScannSettings
from big_align.use.search.stores.store import CAPTIONS, EXACT_BELOW, IMAGES, KINDS, StoredImage

SPARE = 2  # ScaNN is asked for this many times the rows that on average contain k allowed ones


def open_store(place: str) -> "FolderStore":
    """Opens an index to search it."""
    return FolderStore(pathlib.Path(place).expanduser())


class FolderStore:
    """An index in a folder; `contents` are its tables, embeddings and thumbnails."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self.info, self._path, self.contents = open_generation(folder)
        self.columns = list(TableColumns(self.contents.metadata).types)
        self._searchers: dict[str, ScannRows | None] = {}

    def count(self, kind: str) -> int:
        """Returns how many rows can be searched."""
        return len(self.contents.vectors[kind])

    def search(
        self, kind: str, queries: Float[np.ndarray, "q d"], k: int, filters: Sequence[str] = ()
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns numbers of the nearest whose images meet all filters, and their cosines."""
        mask = apply_filters(self.contents.metadata, filters)
        if kind == CAPTIONS and mask is not None:
            mask = self._mask_captions(mask)
        return self.find(kind, queries, k, mask)

    def find(
        self,
        kind: str,
        queries: Float[np.ndarray, "q d"],
        k: int,
        mask: Bool[np.ndarray, "n"] | None = None,
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns the numbers of the nearest rows of a mask, and their cosines.

        ScaNN searches if the index has it. If a mask leaves few rows, these are compared exactly;
        otherwise ScaNN is asked for more, in proportion to what the mask leaves out.
        """
        rows = self.contents.vectors[kind]
        scann = self._scann(kind)
        allowed = len(rows) if mask is None else int(mask.sum())
        numbers = None if mask is None else np.flatnonzero(mask)
        if scann is None or allowed < EXACT_BELOW and mask is not None or 2 * k >= allowed:
            return rescore(queries, rows, search_exactly(queries, rows, k, numbers)[0], k)
        most = max(k, K + 1)  # with fewer, ScaNN rescores too few to reach the noted recall
        if mask is not None:
            most = -(-SPARE * most * len(rows) // allowed)
        most = min(len(rows), most)
        order, score = rescore(queries, rows, scann.search(queries, most), k, mask)
        for query in np.flatnonzero(~np.isfinite(score[:, -1])):  # too few allowed rows were found
            one = queries[query, None]
            nearest, _ = search_exactly(one, rows, k, numbers)
            order[query], score[query] = (x[0] for x in rescore(one, rows, nearest, k))
        return order, score

    def read_images(self, rows: Sequence[int]) -> list[StoredImage]:
        """Returns what is known of images."""
        found = []
        for row in rows:
            texts, numbers = self.contents.captions["text"], self.contents.images["captions"][row]
            captions = [texts[number].as_py() for number in numbers.as_py()]
            metadata = {name: self.contents.metadata[name][row].as_py() for name in self.columns}
            found.append(StoredImage(self.contents.images["name"][row].as_py(), captions, metadata))
        return found

    def read_captions(
        self, numbers: Sequence[int], filters: Sequence[str]
    ) -> list[tuple[int, str]]:
        """Returns the first image of each caption that meets all filters, and the text."""
        mask = apply_filters(self.contents.metadata, filters)
        captions, rows = self._caption_links
        found = []
        for number in numbers:
            having = rows[slice(*np.searchsorted(captions, [number, number + 1]))]
            having = having if mask is None else having[mask[having]]
            found.append((int(having[0]), self.contents.captions["text"][number].as_py()))
        return found

    def read_vector(self, row: int) -> Float[np.ndarray, "d"]:
        """Returns the embedding of an image."""
        return np.asarray(self.contents.vectors[IMAGES][row], np.float32)

    def read_thumbnail(self, row: int) -> bytes:
        """Returns the JPEG of an image; empty if there is none."""
        return self.contents.read_thumbnail(row)

    def has_image(self, row: int) -> bool:
        """Returns whether an image has this number."""
        return 0 <= row < len(self.contents.images)

    def find_image(self, name: str) -> int | None:
        """Returns the number of an image, None if there is none of this name."""
        return self._rows.get(name)

    def list_names(self, most: int) -> list[str]:
        """Returns the names of the first images."""
        return self.contents.images["name"][:most].to_pylist()

    def warm(self) -> None:
        """Loads what searches, which otherwise happens at the first search."""
        for kind in KINDS:
            self._scann(kind)

    @functools.cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.contents.images["name"].to_pylist())}

    @functools.cached_property
    def _caption_links(self) -> tuple[Int[np.ndarray, "l"], Int[np.ndarray, "l"]]:
        """Pairs of captions and the rows of images that have them, in the order of captions."""
        column = self.contents.images["captions"].combine_chunks()
        captions = column.flatten().to_numpy()
        rows = np.repeat(np.arange(len(column)), column.value_lengths().to_numpy())
        order = np.argsort(captions, kind="stable")
        return captions[order].astype(np.int64), rows[order]

    def _mask_captions(self, mask: Bool[np.ndarray, "n"]) -> Bool[np.ndarray, "c"]:
        """Returns which captions belong to an image that meets the conditions."""
        captions, rows = self._caption_links
        found = np.zeros(len(self.contents.captions), bool)
        found[captions[mask[rows]]] = True
        return found

    def _scann(self, kind: str) -> ScannRows | None:
        if kind not in self._searchers:
            self._searchers[kind] = self._load_scann(kind)
        return self._searchers[kind]

    def _load_scann(self, kind: str) -> ScannRows | None:
        searched = self.info["search"]
        noted = searched.get(kind) if isinstance(searched, dict) else None
        scann = isinstance(noted, dict) and noted.get("method") == "scann"
        needs = ("method", *ScannSettings._fields) if scann else ("method",)
        if not isinstance(noted, dict) or not all(field in noted for field in needs):
            raise UserError(
                f"{self._folder / INFO}: `search` does not say how {kind} are searched; build the "
                "index again"
            )
        if not scann:
            return None
        settings = ScannSettings(*(noted[field] for field in ScannSettings._fields))
        try:
            return ScannRows.load(self._path / f"{kind}.scann", settings)
        except UserError as error:
            if read_info(self._folder)["generation"] != self.info["generation"]:
                raise UserError(
                    f"{self._folder} has been updated since it was loaded: load it again"
                ) from error
            raise
