"""Builds an index of a source, continues one that was stopped, and brings one up to date."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from big_align.core.errors import UserError, WrongValue
from big_align.core.progress import make_bar
from big_align.data.examples import Source
from big_align.data.precomputed.shard_files import check_same
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.search import recall_queries
from big_align.use.search.metadata import MetadataTable, SourceMetadata, add_labels, empty_metadata
from big_align.use.search.source_entries import Item, LoadedEntry, SourceEntries
from big_align.use.search.stores.scann_rows import load_scann
from big_align.use.search.stores.store import IndexEntry, SearchGoal, StoreWriter, open_writer

BATCH = 128  # images that are embedded at a time
TEXTS = 1024  # captions, likewise
NAMED_FIRST = 20  # broken images that are named
BAR = {"dynamic_ncols": True, "delay": 1}


class IndexReport(NamedTuple):
    """What a run has done."""

    images: int  # in the index
    embedded: int  # how many of them now
    removed: int  # images that the source no longer has, or that have changed
    broken: int  # images that cannot be used
    without_texts: int  # images whose captions and labels are missing or cannot be used
    captions: int  # different texts in the index
    described: int | None  # images with a row of metadata; None without metadata
    search: dict[str, Any]  # what `index.json` says about searching each kind


class IndexBuilder:
    """Brings an index up to date with a source.

    The address is a folder, or that of another store; there is an index of this model, or nothing.
    Readers see `made_by`, `model` and `source`. Thumbnails have so many pixels on their longer
    side; 0 for none.
    """

    def __init__(
        self,
        model: LoadedModel,
        address: str | os.PathLike,
        made_by: Mapping[str, Any],
        dtype: str = "float16",
        thumbnail: int = 256,
    ):
        self._model, self._address, self._made_by = model, address, dict(made_by)
        self._settings = {
            "weights": digest_weights(model.flat),
            "architecture": digest_architecture(model),
            "transform": model.preprocessing and model.preprocessing.transform,
            "dtype": dtype,
            "thumbnail": thumbnail,
        }

    def build(
        self,
        source: Source,
        metadata: MetadataTable | SourceMetadata | None = None,
        recall: float = 0.95,
        method: str = "auto",
    ) -> IndexReport:
        """Embeds what is new, drops what is gone, and prepares the search.

        The fraction `recall` of the 10 nearest has to be found by an approximate search. The method
        is "exact", one of the store, or "auto": that of the store from 50,000 rows on, if it is
        installed and reaches the recall.
        """
        with open_writer(self._address, self._settings, self._made_by, self._count_dims) as writer:
            if method not in (known := ("auto", "exact", *writer.methods)):
                raise WrongValue(f"--search={method} is none of {', '.join(known)} of this store")
            if method == "scann":
                load_scann()  # where it is missing, nothing is embedded first
            building = _Building(self._model, writer, source, self._settings["thumbnail"])
            gone = building.list_gone(os.fspath(self._address))
            if metadata is not None and writer.block is not None:
                metadata = metadata.fix(building.entries.list_keys())
            building.add_all(metadata, self._note_tokenizer)
            draw = functools.partial(recall_queries.draw, model=self._model)
            building.done["removed"] += writer.finish(gone, SearchGoal(recall, method, draw))
            info = writer.info
        return IndexReport(**building.done, captions=info["captions"], search=info["search"])

    def _count_dims(self) -> int:
        return self._model.embed_images(np.zeros((512, 512, 3), np.uint8)).shape[1]

    def _note_tokenizer(self, info: dict[str, Any]) -> None:
        """Notes the tokenizer of the captions, which must be that of those that are there."""
        now = {"tokenizer": self._model.made_tokenizer.fingerprint}
        check_same(self._address, now | {k: info[k] for k in now if k in info}, now)
        info |= now


class _Building:
    """What is known while an index is built."""

    def __init__(self, model: LoadedModel, writer: StoreWriter, source: Source, thumbnail: int):
        self._model, self._writer = model, writer
        self.entries = SourceEntries(source, thumbnail)
        self.done = dict.fromkeys(("images", "embedded", "removed", "broken", "without_texts"), 0)
        self.done["described"] = None
        self._reads_texts = bool(model.embeds("text") and model.tokenizer)

    def list_gone(self, address: str) -> list[str]:
        """Returns names of the index that the source lacks.

        A source with none of the images of the index, which would empty it, is refused.
        """
        gone, there, first = [], 0, ""
        for names in self._writer.list_names():
            first = first or names[0]
            there += len(names)
            has = self.entries.has(names)
            gone += [name for name, found in zip(names, has, strict=True) if not found]
        if there and len(gone) == there:
            raise UserError(
                f"{address} has {there} images, the first {first}, and --source has none of "
                "them; give another --output, or remove the folder"
            )
        return gone

    def add_all(self, metadata: MetadataTable | SourceMetadata | None, note_tokenizer: Any) -> None:
        """Embeds what is new, block by block, and lets the writer hold what can be used."""
        with make_bar(total=len(self.entries), unit="image", **BAR) as bar:
            for block in self.entries.list_blocks(self._writer.block):
                found = self._add_images(block, bar)
                self._add_texts(found, note_tokenizer)
                columns = empty_metadata(len(found))
                if metadata is not None and found:
                    columns, described = metadata.align(found)
                    self.done["described"] = described + (self.done["described"] or 0)
                columns = add_labels(columns, [entry.label for entry in found])
                self.done["removed"] += self._writer.end_block(found, columns, self._reads_texts)
                self.done["images"] += len(found)
        if not self.done["images"]:
            count = len(self.entries)
            raise UserError(f"none of {count} images can be used; the first are named above")

    def _add_images(self, block: Sequence[Item], bar: Any) -> list[IndexEntry]:
        """Returns the images of a block that can be used, after embedding those that are new."""
        is_known = self._writer.find_images([name for _, _, name in block])
        found, batch = [], []
        for loaded in self.entries.load(block, is_known):
            bar.update()
            if loaded.entry is None:
                self.done["broken"] += 1
                _tell_broken(loaded, self.done["broken"])
                continue
            if loaded.fault:
                self.done["without_texts"] += 1
                if self.done["without_texts"] == 1:
                    told = "%s is indexed without texts: %s"
                    logging.warning(told, loaded.entry.name, loaded.fault)
            found.append(loaded.entry)
            if loaded.image is not None:
                batch.append(loaded)
            if len(batch) == BATCH:
                self._embed(batch, found)
        self._embed(batch, found)
        return found

    def _embed(self, batch: list[LoadedEntry], found: list[IndexEntry]) -> None:
        """Embeds a batch and empties it; what is broken after all is no longer found."""
        if not batch:
            return
        rows = self._model.embed_images([loaded.image for loaded in batch], broken="nan")
        there = np.isfinite(rows).all(axis=1)
        for loaded in (loaded for loaded, real in zip(batch, there, strict=True) if not real):
            found.remove(loaded.entry)
            logging.warning("%s: it cannot be embedded", loaded.entry.name)
        kept = [loaded for loaded, real in zip(batch, there, strict=True) if real]
        thumbnails = [loaded.thumbnail for loaded in kept]
        self._writer.add_images([loaded.entry for loaded in kept], rows[there], thumbnails)
        self.done["embedded"] += len(kept)
        self.done["broken"] += len(batch) - len(kept)
        batch.clear()

    def _add_texts(self, found: Sequence[IndexEntry], note_tokenizer: Any) -> None:
        """Embeds the captions of these images, each text once."""
        texts = list(dict.fromkeys(text for entry in found for text in entry.captions))
        if not texts or not self._reads_texts:
            return
        note_tokenizer(self._writer.info)
        known = self._writer.find_texts(texts)
        new = [text for text in texts if text not in known]
        for first in make_bar(range(0, len(new), TEXTS), unit="batch of captions", **BAR):
            part = new[first : first + TEXTS]
            self._writer.add_texts(part, self._model.embed_texts(part))


def _tell_broken(loaded: LoadedEntry, count: int) -> None:
    if count <= NAMED_FIRST:
        logging.warning("left out %s", loaded.fault)
    elif count == NAMED_FIRST + 1:
        logging.warning("more images are broken, which are not named")
