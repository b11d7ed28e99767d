"""What an index needs of the place where its rows are: to write, delete, search and read them."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from big_align.core.errors import UserError

IMAGES, CAPTIONS = "images", "captions"
KINDS = (IMAGES, CAPTIONS)
"""What an index holds embeddings of."""
EXACT_BELOW = 50_000
"""With fewer rows, comparing with all of them takes at most a few hundredths of a second."""
PLACEHOLDER = "(row)"
"""The column of a table that has no other: Parquet does not count rows without one."""

STORES = {"lancedb": "big_align.use.search.stores.on_lance.lance_store"}
"""Modules with `open_store` and `open_writer`, by the word before the colon of an address."""
FOLDER = "big_align.use.search.stores.folder_store"
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?![\\])")

Queries = dict[str, tuple[Float[np.ndarray, "_ d"], Int[np.ndarray, "_"]]]
"""For each kind, embeddings, and the numbers of their own rows, or -1."""
Sample = Callable[[str, int], tuple[Int[np.ndarray, "_"], Float[np.ndarray, "_ d"]]]
"""Draws so many rows of a kind: their numbers and embeddings."""


class IndexEntry(NamedTuple):
    """An image of a source."""

    name: str  # identifies it: the path of its file, or its place in a shard
    key: str  # what the source calls it
    shard: str  # the shard that it is in; the second of one name is "NAME (2)"
    number: int  # which example of the source it is
    signature: str  # changes with the file, or with the encoded image if it has no file of its own
    captions: list[str]
    label: str | None  # the names of its classes, or their numbers; None if it has none


class StoredImage(NamedTuple):
    """What is known of an image of an index."""

    name: str
    captions: list[str]
    metadata: dict[str, Any]


class SearchGoal(NamedTuple):
    """How an index is to be searched."""

    recall: float  # the fraction of the 10 nearest that are to be found
    method: str  # "auto", "exact", or one of the store's own
    draw: Callable[[Sample, str], Queries]  # makes queries of a kind that measure the recall

    def note(self) -> dict[str, Any]:
        """Returns what an index says of it."""
        return {"recall": self.recall, "method": self.method}


@runtime_checkable
class Store(Protocol):
    """Rows of an index as they were when it was opened: images and captions have numbers."""

    info: dict[str, Any]  # what the index says about itself
    columns: list[str]  # of the metadata

    def count(self, kind: str) -> int:
        """Returns how many rows can be searched."""

    def search(
        self, kind: str, queries: Float[np.ndarray, "q d"], k: int, filters: Sequence[str] = ()
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns numbers of the nearest whose images meet all filters, and their cosines."""

    def read_images(self, rows: Sequence[int]) -> list[StoredImage]:
        """Returns what is known of images."""

    def read_captions(
        self, numbers: Sequence[int], filters: Sequence[str]
    ) -> list[tuple[int, str]]:
        """Returns the first image of each caption that meets all filters, and the text."""

    def read_vector(self, row: int) -> Float[np.ndarray, "d"]:
        """Returns the embedding of an image."""

    def read_thumbnail(self, row: int) -> bytes:
        """Returns the JPEG of an image; empty if there is none."""

    def has_image(self, row: int) -> bool:
        """Returns whether an image has this number."""

    def find_image(self, name: str) -> int | None:
        """Returns the number of an image, None if there is none of this name."""

    def list_names(self, most: int) -> list[str]:
        """Returns the names of some images."""

    def warm(self) -> None:
        """Loads what searches, which otherwise happens at the first search."""


@runtime_checkable
class StoreWriter(Protocol):
    """Brings the rows of an index up to date, a block of images at a time.

    `info` is what the index says about itself; what is added there is written at the end.
    """

    info: dict[str, Any]
    block: int | None  # images whose rows are written together; None needs all at once
    methods: tuple[str, ...]  # names of searches, besides "auto" and "exact"

    def list_names(self) -> Iterator[list[str]]:
        """Yields the names of all images that the index has, some at a time."""

    def find_images(self, names: Sequence[str]) -> Callable[[str, str], bool]:
        """Begins a block; tells of which names and signatures the index has the embeddings."""

    def add_images(
        self,
        entries: Sequence[IndexEntry],
        vectors: Float[np.ndarray, "n d"],
        thumbnails: Sequence[bytes],
    ) -> None:
        """Takes embeddings of images that are new or have changed."""

    def find_texts(self, texts: Sequence[str]) -> set[str]:
        """Returns the texts whose embeddings the index has."""

    def add_texts(self, texts: Sequence[str], vectors: Float[np.ndarray, "n d"]) -> None:
        """Takes embeddings of texts."""

    def end_block(self, entries: Sequence[IndexEntry], metadata: pa.Table, texts: bool) -> int:
        """Makes a block hold these images and no others; returns how many are gone.

        With `texts`, their captions have embeddings.
        """

    def finish(self, gone: Sequence[str], wanted: SearchGoal) -> int:
        """Drops the images that the source no longer has, and prepares the search.

        Returns how many are gone that `end_block` has not counted.
        """


def load_module(address: str | os.PathLike) -> tuple[Any, str]:
    """Returns the module of the store at an address, and the place in it.

    Raises:
      UserError: no store has that scheme, or its package is not installed.
    """
    text = os.fspath(address)
    match = SCHEME.match(text)
    if match is None or os.path.exists(text):
        return importlib.import_module(FOLDER), text
    scheme = match[1].lower()
    place = text[match.end() :]
    if scheme not in STORES:
        known = " or ".join(f"{name}:PATH" for name in STORES)
        raise UserError(
            f"{text} is no place of an index: give a folder of this machine, or {known}, where "
            f"PATH may be s3://BUCKET/NAME"
        )
    if not place:
        raise UserError(f"{text} names no place: write {scheme}:PATH")
    # LanceDB and pylance warn of each partition without a row, and of what they decide themselves.
    for name in ("LANCEDB_LOG", "LANCE_LOG"):
        os.environ.setdefault(name, "error")
    try:
        return importlib.import_module(STORES[scheme]), place
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install -e '.[{scheme}]'") from error


def open_store(address: str | os.PathLike) -> Store:
    """Opens an index to search it; the address is a folder or SCHEME:PLACE."""
    module, place = load_module(address)
    return module.open_store(place)


@contextlib.contextmanager
def open_writer(
    address: str | os.PathLike,
    settings: Mapping[str, Any],
    made_by: Mapping[str, Any],
    count_dims: Callable[[], int],
) -> Iterator[StoreWriter]:
    """Opens an index to bring it up to date, or begins one of as many dimensions as are counted.

    The settings must be those it was made with; `made_by` is noted for readers.
    """
    module, place = load_module(address)
    with module.open_writer(place, settings, made_by, count_dims) as writer:
        yield writer
