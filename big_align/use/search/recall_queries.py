"""Queries by which the recall of a search is measured: like those that will be asked."""

import numpy as np
from jaxtyping import Float, Int

from big_align.data.labels.classes import read_classes
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.search.index_folder import CAPTIONS, IMAGES, IndexGeneration

COUNT = 500
"""Queries per kind."""
CLASSES = "imagenet"
"""The class list whose names serve as texts if there are no captions."""

Queries = dict[str, tuple[Float[np.ndarray, "_ d"], Int[np.ndarray, "_"]]]
"""For each kind, embeddings, and the numbers of their own rows, or -1."""


def draw(made: IndexGeneration, kind: str, model: LoadedModel) -> Queries:
    """Draws images and texts as queries.

    Embeddings of texts lie apart from those of images, and are harder for a search that was trained
    on images. So both are measured: rows of the kind itself, each of which does not count as its
    own neighbor, and rows of the other kind. If there are no captions, names of classes serve as
    texts.
    """
    rng, queries = np.random.default_rng(0), {}
    for name in (IMAGES, CAPTIONS):
        rows = made.vectors[name]
        if len(rows):
            chosen = np.sort(rng.choice(len(rows), min(COUNT, len(rows)), replace=False))
            own = chosen if name == kind else np.full(len(chosen), -1)
            queries[name] = np.asarray(rows[chosen], np.float32), own
    if CAPTIONS not in queries and model.embeds("text") and model.tokenizer:
        names = rng.permutation(read_classes(CLASSES).names)[:COUNT]
        values = model.embed_texts([f"a photo of a {name}" for name in names.tolist()])
        queries["names of classes"] = values, np.full(len(values), -1)
    return queries
