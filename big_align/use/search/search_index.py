"""An index, ready to be searched: by texts, images, and sums and differences of them."""

import dataclasses
import functools
import math
import operator
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import BrokenImages, UserError, suggest
from big_align.data.images import given_images
from big_align.runs.embedding.embed_source import digest_architecture, digest_weights
from big_align.use.inference.loaded_model import LoadedModel, load
from big_align.use.inference.ranking import check_count
from big_align.use.search import queries
from big_align.use.search.exact_search import rescore, search_exactly
from big_align.use.search.filters import apply_filters
from big_align.use.search.index_folder import (
    CAPTIONS,
    IMAGES,
    INFO,
    KINDS,
    open_generation,
    read_info,
)
from big_align.use.search.metadata import PLACEHOLDER
from big_align.use.search.scann_rows import EXACT_BELOW, K, ScannRows, ScannSettings

MOST = 10_000  # hits that can be asked for
SPARE = 2  # ScaNN is asked for this many times the rows that on average contain k allowed ones


@dataclasses.dataclass(frozen=True)
class Hit:
    """An image that was found, or a caption with an image that has it.

    Attributes:
      row: the row of the image.
      score: the cosine with the query.
      name: the name of the image: the path of its file, or its place in a shard.
      captions: the captions of the image; for a caption that was found, only this one.
      metadata: the metadata of the image, by column.
    """

    row: int
    score: float
    name: str
    captions: list[str]
    metadata: dict[str, Any]


class SearchIndex:
    """An index that is ready to be searched; `load_index` returns it.

    Attributes:
      info: what `index.json` says.
      contents: tables, embeddings and thumbnails.
    """

    def __init__(
        self, folder: str | os.PathLike, model: str | os.PathLike | LoadedModel | None = None
    ):
        self._folder, self._given = pathlib.Path(folder).expanduser(), model
        self.info, self._path, self.contents = open_generation(self._folder)
        self._searchers: dict[str, ScannRows | None] = {}

    def __len__(self) -> int:
        return len(self.contents.images)

    def __repr__(self) -> str:
        captions, dim = len(self.contents.captions), self.contents.vectors[IMAGES].shape[1]
        counts = f"{len(self)} images and {captions} captions, embeddings of {dim}"
        columns = f"; metadata: {', '.join(self.columns)}" if self.columns else ""
        return f"<{type(self).__name__} of {self._folder}: {counts}{columns}>"

    @property
    def columns(self) -> list[str]:
        """The columns of metadata that filters compare."""
        return [name for name in self.contents.metadata.column_names if name != PLACEHOLDER]

    def search(
        self,
        texts: str | Sequence[str] = (),
        images: Any = (),
        *,
        like: Any = (),
        weights: Sequence[float | int] | None = None,
        k: int = 10,
        of: str = IMAGES,
        filters: str | Sequence[str] = (),
    ) -> list[Hit]:
        """Finds what is nearest to a sum of texts and images (ALIGN, Section 7).

        Args:
          texts: one or several; `-cars` subtracts.
          images: one or several, as `LoadedModel.embed_images` takes them.
          like: one image of the index or several, by names or rows.
          weights: those of the texts, then `images`, then `like`; below 0 subtracts. None weighs a
            text beside an image twice, as the paper does, and all else once.
          k: how many to find.
          of: "images" or "captions".
          filters: a condition on the metadata, such as "year>=2020", or several that all hold.

        Returns:
          The nearest first; fewer than `k` if no more meet the conditions.

        Raises:
          UserError: the query is empty or cancels itself, an image is broken, a name or a column
            is unknown, or the model is not that of the index.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        none = isinstance(images, list | tuple) and not images
        pictures = [] if none else given_images.check_images(images)
        rows = [self.find_row(name) for name in ([like] if np.ndim(like) == 0 else like)]
        chosen = queries.choose_weights(len(texts), len(pictures) + len(rows), weights)
        parts = [self.embed_text(text) for text in texts]
        try:
            parts += list(self.model.embed_images(pictures)) if pictures else []
        except BrokenImages as error:  # a search has no other way than to leave them out
            raise UserError(error.message) from error
        parts += [self.read_vector(row) for row in rows]
        return self.search_vector(queries.combine(np.stack(parts), chosen), k, of, filters)

    def search_vector(
        self,
        vector: Float[np.ndarray, "*one d"],
        k: int = 10,
        of: str = IMAGES,
        filters: str | Sequence[str] = (),
    ) -> list[Hit]:
        """Finds what is nearest to an embedding, [d] or [1 d] and of any length; as in `search`."""
        vector = queries.check_vector(vector, self.contents.vectors[IMAGES].shape[1])
        if of not in KINDS:
            raise UserError(f"of = {of!r} is neither 'images' nor 'captions'")
        k = check_count(k, MOST)
        if of == CAPTIONS and not len(self.contents.vectors[CAPTIONS]):
            raise UserError(f"{self._folder} has no captions that can be searched")
        filters = [filters] if isinstance(filters, str) else filters
        images = apply_filters(self.contents.metadata, filters)
        make, mask = self._make_hit, images
        if of == CAPTIONS:
            make = functools.partial(self._make_caption_hit, images)
            mask = None if images is None else self._mask_captions(images)
        found, score = self.find(of, vector, k, mask)
        return [make(*pair) for pair in zip(found[0].tolist(), score[0].tolist(), strict=True)]

    def find(
        self,
        kind: str,
        vectors: Float[np.ndarray, "q d"],
        k: int,
        mask: Bool[np.ndarray, "n"] | None = None,
    ) -> tuple[Int[np.ndarray, "q _"], Float[np.ndarray, "q _"]]:
        """Returns the numbers of the nearest rows, the nearest first, and their cosines.

        ScaNN searches if the index has it. If a mask leaves few rows, these are compared exactly;
        otherwise ScaNN is asked for more, in proportion to what the mask leaves out.
        """
        rows = self.contents.vectors[kind]
        scann = self._scann(kind)
        allowed = len(rows) if mask is None else int(mask.sum())
        numbers = None if mask is None else np.flatnonzero(mask)
        if scann is None or allowed < EXACT_BELOW and mask is not None or 2 * k >= allowed:
            return rescore(vectors, rows, search_exactly(vectors, rows, k, numbers)[0], k)
        most = max(k, K + 1)  # with fewer, ScaNN rescores too few to reach the noted recall
        if mask is not None:
            most = -(-SPARE * most * len(rows) // allowed)
        most = min(len(rows), most)
        found = scann.search(vectors, most)
        order, score = rescore(vectors, rows, found, k, mask)
        for query in np.flatnonzero(~np.isfinite(score[:, -1])):  # too few allowed rows were found
            one = vectors[query, None]
            nearest, _ = search_exactly(one, rows, k, numbers)
            order[query], score[query] = (x[0] for x in rescore(one, rows, nearest, k))
        return order, score

    def embed_text(self, text: str) -> Float[np.ndarray, "d"]:
        """Embeds a text of a query; `-cars` is the opposite of `cars`."""
        words, sign = queries.split_sign(text)
        return sign * self._embed_words(words)

    def read_vector(self, row: int) -> Float[np.ndarray, "d"]:
        """Returns the embedding of an image of the index."""
        return np.asarray(self.contents.vectors[IMAGES][row], np.float32)

    def find_row(self, name: Any) -> int:
        """Returns the row of an image by its name, a text or path, or checks a row."""
        if not isinstance(name, str | os.PathLike):
            if not hasattr(name, "__index__") or not 0 <= operator.index(name) < len(self):
                raise UserError(f"there is no image {name!r}; the index has {len(self)}")
            return operator.index(name)
        name = os.fspath(name)
        if name not in self._rows:
            near = suggest(name, list(self._rows)[:10_000])
            raise UserError(f"the index has no image {name!r}{near}; --image takes any file")
        return self._rows[name]

    def warm(self) -> None:
        """Loads what searches, which otherwise happens at the first search.

        From then on an update of the index changes nothing: what is loaded stays as it was.
        """
        for kind in KINDS:
            self._scann(kind)

    @functools.cached_property
    def model(self) -> LoadedModel:
        """The model that embeds queries."""
        model = self._given or self.info["model"]
        if not isinstance(model, LoadedModel):
            try:
                model = load(model, transform=self.info["transform"], progress=False)
            except FileNotFoundError as error:
                raise UserError(f"{error}; give the model of the index by --model") from error
        self._check("weights", digest_weights(model.flat))
        self._check("architecture", digest_architecture(model))
        self._check("transform", model.preprocessing and model.preprocessing.transform)
        return model

    def _check(self, what: str, digest: str | None) -> None:
        """Raises a UserError if the model differs; an index without texts has no `tokenizer`."""
        if digest != self.info.get(what, digest):
            given = isinstance(self._given, LoadedModel)
            model = "the given model" if given else self._given or self.info["model"]
            other = "other weights" if what == "weights" else f"another {what}"
            raise UserError(
                f"{model} has {other} than the model of {self._folder}; build the index again, or "
                "give its model by --model, such as WORKDIR/checkpoints/STEP if the run went on"
            )

    @functools.cached_property
    def _embed_words(self) -> Any:
        model = self.model
        if model.embeds("text"):
            self._check("tokenizer", model.made_tokenizer.fingerprint)
        return functools.lru_cache(1024)(lambda words: model.embed_queries([words])[0])

    @functools.cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.contents.images["name"].to_pylist())}

    @functools.cached_property
    def _caption_links(self) -> tuple[Int[np.ndarray, "l"], Int[np.ndarray, "l"]]:
        """Pairs of captions and the rows of images that have them, in the order of captions."""
        column = self.contents.images["captions"].combine_chunks()
        captions = column.flatten().to_numpy()
        rows = np.repeat(np.arange(len(self)), column.value_lengths().to_numpy())
        order = np.argsort(captions, kind="stable")
        return captions[order].astype(np.int64), rows[order]

    def _mask_captions(self, mask: Bool[np.ndarray, "n"]) -> Bool[np.ndarray, "c"]:
        """Returns which captions belong to an image that meets the conditions."""
        captions, rows = self._caption_links
        found = np.zeros(len(self.contents.captions), bool)
        found[captions[mask[rows]]] = True
        return found

    def _make_hit(self, row: int, score: float) -> Hit:
        numbers = self.contents.images["captions"][row].as_py()
        captions = [self.contents.captions["text"][number].as_py() for number in numbers]
        return self._describe(row, score, captions)

    def _make_caption_hit(
        self, mask: Bool[np.ndarray, "n"] | None, number: int, score: float
    ) -> Hit:
        """Makes a hit from a caption: with the first image that has it and meets the conditions."""
        captions, rows = self._caption_links
        having = rows[slice(*np.searchsorted(captions, [number, number + 1]))]
        having = having if mask is None else having[mask[having]]
        return self._describe(
            int(having[0]), score, [self.contents.captions["text"][number].as_py()]
        )

    def _describe(self, row: int, score: float, captions: list[str]) -> Hit:
        metadata = {
            name: _leave_out_nan(self.contents.metadata[name][row].as_py()) for name in self.columns
        }
        name = self.contents.images["name"][row].as_py()
        return Hit(row, score, name, captions, metadata)

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


def load_index(
    folder: str | os.PathLike, model: str | os.PathLike | LoadedModel | None = None
) -> SearchIndex:
    """Loads an index of images and captions, to be searched.

    Args:
      folder: the folder that `big_align.tools.index` wrote.
      model: the model of the index, or its present path; None looks where it was.

    Returns:
      The index; `search` takes texts, images, and sums and differences of them.

    Raises:
      UserError: the folder is not an index, or is damaged.
    """
    return SearchIndex(folder, model)


def _leave_out_nan(value: Any) -> Any:
    """Returns None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
