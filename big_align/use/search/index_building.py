"""Builds an index of a source, continues one that was stopped, and brings one up to date."""

import importlib.util
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from big_align.core.errors import UserError
from big_align.core.locks import lock_folder
from big_align.core.progress import make_bar
from big_align.core.whole_files import PARTIAL
from big_align.data.examples import Source
from big_align.data.precomputed.shard_files import check_same
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.search import generations, recall_queries
from big_align.use.search.index_folder import (
    CAPTIONS,
    IMAGES,
    INFO,
    KINDS,
    IndexGeneration,
    add_up_generation,
    generation_folder,
    read_generation,
    read_info,
    remove_others,
    write_info,
)
from big_align.use.search.metadata import MetadataTable, SourceMetadata, add_labels, empty_metadata
from big_align.use.search.pending_rows import PendingRows
from big_align.use.search.scann_rows import EXACT_BELOW, LEAST, ScannRows, choose_settings
from big_align.use.search.source_entries import IndexEntry, LoadedEntry, SourceEntries

BATCH = 128  # images that are embedded, and stored, at a time
TEXTS = 1024  # captions, likewise
NAMED_FIRST = 20  # broken images that are named
METHODS = ("auto", "exact", "scann")


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
    """Brings the index in a folder up to date with a source.

    The folder is made if needed; it holds an index of this model, or nothing. Readers see
    `made_by`, `model` and `source`. Thumbnails have so many pixels on their longer side; 0 for
    none.
    """

    def __init__(
        self,
        model: LoadedModel,
        folder: pathlib.Path,
        made_by: Mapping[str, Any],
        dtype: str = "float16",
        thumbnail: int = 256,
    ):
        self._model, self._folder, self._made_by = model, folder, dict(made_by)
        self._settings = {
            "weights": digest_weights(model.flat),
            "architecture": digest_architecture(model),
            "transform": model.preprocessing and model.preprocessing.transform,
            "dtype": dtype,
            "thumbnail": thumbnail,
        }
        if (folder / INFO).is_file():
            self._info = self._read_info()
        else:
            names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
            # A run can be stopped before it writes more.
            if any(not name.endswith(PARTIAL) for name in names):
                raise UserError(f"{folder} holds other files; give another --output")
            zeros = np.zeros((512, 512, 3), np.uint8)
            dim = model.embed_images(zeros).shape[1]
            fresh = {"dim": dim, "generation": 0, "search": {}, "files": {}}
            self._info = self._settings | self._made_by | fresh

    def _read_info(self) -> dict[str, Any]:
        """Reads what the index says about itself; it must have the weights and settings of this."""
        there = read_info(self._folder)
        check_same(self._folder, {field: there[field] for field in self._settings}, self._settings)
        return there | self._made_by

    def build(
        self,
        source: Source,
        metadata: MetadataTable | SourceMetadata | None = None,
        recall: float = 0.95,
        method: str = "auto",
    ) -> IndexReport:
        """Embeds what is new, drops what is gone, and prepares the search.

        The fraction `recall` of the 10 nearest has to be found by ScaNN. The method is "exact",
        "scann", or "auto": ScaNN from 50,000 rows on, if it is installed and reaches the recall.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(self._folder, "another process is writing this index"):
            if (self._folder / INFO).is_file():  # another process may have finished since
                self._info = self._read_info()
            write_info(self._folder, self._info)
            old = None
            if self._info["generation"]:
                path = generation_folder(self._folder, self._info)
                old = read_generation(path, self._info["files"])
            remove_others(self._folder, self._info["generation"])
            settings = self._info["dim"], self._info["dtype"]
            pending = {kind: PendingRows(self._folder, kind, *settings) for kind in KINDS}
            found, places, report = self._embed_images(source, old, pending[IMAGES])
            texts, text_places = self._embed_captions(found, old, pending[CAPTIONS])
            columns = empty_metadata(len(found))
            if metadata is not None:
                columns, report["described"] = metadata.align(found)
            columns = add_labels(columns, [entry.label for entry in found])
            drafted = generations.draft(found, texts, columns)
            moved = not all(np.array_equal(x, np.arange(len(x))) for x in (places, text_places))
            changed = old is None or moved or not generations.are_same(old, drafted)
            wanted = {"recall": recall, "method": method}
            if changed or self._info.get("wanted") != wanted:
                self._write(drafted, old, pending, (places, text_places), wanted)
            for rows in pending.values():
                rows.remove()
        return IndexReport(captions=len(texts), search=self._info["search"], **report)

    def _embed_images(
        self, source: Source, old: IndexGeneration | None, pending: PendingRows
    ) -> tuple[list[IndexEntry], np.ndarray, dict[str, Any]]:
        """Returns the images that can be used, where the row of each is, and what was done."""
        names, signatures = [], []
        if old is not None:
            names, signatures = (old.images[f].to_pylist() for f in ("name", "signature"))
        before = len(names)
        known = {tuple(pair): before + n for n, pair in enumerate(pending.records)}
        known |= {pair: n for n, pair in enumerate(zip(names, signatures, strict=True))}
        entries = SourceEntries(source, self._info["thumbnail"])
        _check_overlap(self._folder, entries.names, names)
        start, found, batch, broken, without = len(pending.records), [], [], 0, 0

        def store() -> int:
            """Embeds the batch; returns how many of its images are broken after all."""
            if not batch:
                return 0
            rows = self._model.embed_images([loaded.image for loaded in batch], broken="nan")
            there = np.isfinite(rows).all(axis=1)
            kept = [loaded for loaded, real in zip(batch, there, strict=True) if real]
            for loaded in (loaded for loaded, real in zip(batch, there, strict=True) if not real):
                found.remove(loaded.entry)
                logging.warning("%s: it cannot be embedded", loaded.entry.name)
            pairs = [[loaded.entry.name, loaded.entry.signature] for loaded in kept]
            first = before + len(pending.records)
            pending.append(pairs, rows[there], [loaded.thumbnail for loaded in kept])
            known.update({tuple(pair): first + n for n, pair in enumerate(pairs)})
            batch.clear()
            return int((~there).sum())

        bar = {"unit": "image", "dynamic_ncols": True, "delay": 1}
        for loaded in make_bar(
            entries.load(lambda *pair: pair in known), total=len(entries), **bar
        ):
            if loaded.entry is None:
                broken += 1
                _tell_broken(loaded, broken)
                continue
            if loaded.fault:
                without += 1
                if without == 1:
                    told = "%s is indexed without texts: %s"
                    logging.warning(told, loaded.entry.name, loaded.fault)
            found.append(loaded.entry)
            if loaded.image is not None:
                batch.append(loaded)
            if len(batch) == BATCH:
                broken += store()
        broken += store()
        if not found:
            raise UserError(f"none of {len(entries)} images can be used; the first are named above")
        places = np.array([known[entry.name, entry.signature] for entry in found])
        kept = int((places < before).sum())
        done = {"embedded": len(pending.records) - start, "removed": before - kept}
        done |= {"images": len(found), "broken": broken, "without_texts": without}
        return found, places, done | {"described": None}

    def _embed_captions(
        self, found: Sequence[IndexEntry], old: IndexGeneration | None, pending: PendingRows
    ) -> tuple[list[str], np.ndarray]:
        """Returns the different captions, and where the row of each is."""
        texts = list(dict.fromkeys(text for entry in found for text in entry.captions))
        if not (self._model.embeds("text") and self._model.tokenizer):
            return texts, np.zeros(0, np.int64)
        if texts:
            now = {"tokenizer": self._model.made_tokenizer.fingerprint}
            check_same(self._folder, now | {k: self._info[k] for k in now if k in self._info}, now)
            self._info |= now
        there = []
        if old is not None and len(old.vectors[CAPTIONS]):
            there = old.captions["text"].to_pylist()
        known = {text: len(there) + n for n, (text,) in enumerate(pending.records)}
        known |= {text: n for n, text in enumerate(there)}
        new = [text for text in texts if text not in known]
        bar = {"unit": "batch of captions", "dynamic_ncols": True, "delay": 1}
        for first in make_bar(range(0, len(new), TEXTS), **bar):
            part = new[first : first + TEXTS]
            row = len(there) + len(pending.records)
            pending.append([[text] for text in part], self._model.embed_texts(part))
            known.update({text: row + n for n, text in enumerate(part)})
        return texts, np.array([known[text] for text in texts], np.int64)

    def _write(
        self,
        drafted: IndexGeneration,
        old: IndexGeneration | None,
        pending: Mapping[str, PendingRows],
        places: Sequence[np.ndarray],
        wanted: Mapping[str, Any],
    ) -> None:
        """Writes the next generation and what searches it, and then names it in `index.json`."""
        number = self._info["generation"] + 1
        path = self._folder / f"{number:06d}"
        generations.write(path, drafted, old, pending, dict(zip(KINDS, places, strict=True)))
        made = read_generation(path, {})
        search = {}
        for kind in KINDS:
            search[kind] = self._prepare(made, kind, path / f"{kind}.scann", **wanted)
        counts = {"images": len(made.images), "captions": len(made.captions)}
        self._info |= counts | {"generation": number, "search": search, "wanted": dict(wanted)}
        self._info["files"] = add_up_generation(path)
        write_info(self._folder, self._info)
        remove_others(self._folder, number)

    def _prepare(
        self, made: IndexGeneration, kind: str, path: pathlib.Path, recall: float, method: str
    ) -> dict[str, Any]:
        """Builds and saves what searches a kind; returns what to note about it."""
        vectors = made.vectors[kind]
        count = len(vectors)
        least = LEAST if method == "scann" else EXACT_BELOW
        if method == "exact" or count < least:
            return {"method": "exact", "rows": count}
        if method == "auto" and importlib.util.find_spec("scann") is None:
            logging.warning("ScaNN is not installed: the search of %s stays exact", kind)
            return {"method": "exact", "rows": count}
        begin = time.monotonic()
        rows = ScannRows.build(vectors)
        queries = recall_queries.draw(made, kind, self._model)
        measured, recalls = choose_settings(rows, vectors, queries, recall)
        noted = {
            "rows": count,
            **measured.settings._asdict(),
            "recall@10": {name: round(value, 4) for name, value in recalls.items()},
            "queries": {name: len(given) for name, (given, _) in queries.items()},
            "target": recall,
            "seconds_a_query": round(measured.seconds, 6),
            "seconds_to_build": round(time.monotonic() - begin, 1),
        }
        if measured.recall >= recall:
            rows.save(path)
            return {"method": "scann"} | noted
        told = f"ScaNN finds {measured.recall:.3f} of the 10 nearest {kind}, less than {recall:g}"
        if method == "scann":
            raise UserError(f"{told}; give a lower --recall, or --search=exact")
        logging.warning("%s: the search of %s stays exact", told, kind)
        return {"method": "exact", "tried": noted} | {"rows": count}


def _check_overlap(folder: pathlib.Path, names: Iterable[str], there: Sequence[str]) -> None:
    """Refuses a source that has none of the images of the index, which would empty it."""
    if there and not set(names).intersection(there):
        raise UserError(
            f"{folder} has {len(there)} images, the first {there[0]}, and --source has none of "
            "them; give another --output, or remove the folder"
        )


def _tell_broken(loaded: LoadedEntry, count: int) -> None:
    if count <= NAMED_FIRST:
        logging.warning("left out %s", loaded.fault)
    elif count == NAMED_FIRST + 1:
        logging.warning("more images are broken, which are not named")
