"""Queries by which the recall of a search is measured: like those that will be asked."""

import numpy as np

from big_align.data.labels.classes import read_classes
from big_align.use.inference.loaded_model import LoadedModel
from big_align.use.search.stores.store import CAPTIONS, IMAGES, Queries, Sample

COUNT = 500
"""Queries per kind."""
CLASSES = "imagenet"
"""The class list whose names serve as texts if there are no captions."""


def draw(sample: Sample, kind: str, model: LoadedModel) -> Queries:
    """Draws images and texts as queries.

    Embeddings of texts lie apart from those of images, and are harder for a search that was trained
    on images. So both are measured: rows of the kind itself, each of which does not count as its
    own neighbor, and rows of the other kind. If there are no captions, names of classes serve as
    texts.
    """
    queries = {}
    for name in (IMAGES, CAPTIONS):
        numbers, vectors = sample(name, COUNT)
        if len(numbers):
            own = numbers if name == kind else np.full(len(numbers), -1)
            queries[name] = np.asarray(vectors, np.float32), own
    if CAPTIONS not in queries and model.embeds("text") and model.tokenizer:
        names = np.random.default_rng(0).permutation(read_classes(CLASSES).names)[:COUNT]
        values = model.embed_texts([f"a photo of a {name}" for name in names.tolist()])
        queries["names of classes"] = values, np.full(len(values), -1)
    return queries
