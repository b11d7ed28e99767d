"""The stream of examples is pinned: a resumed run finds that of the run that wrote its checkpoint.

The images are made by arithmetic and cropped, flipped and decoded without loss, so that no other
library has a say in their bytes.
"""

import hashlib
import itertools

import numpy as np
import pytest
from loaders import make_loader, make_stream
from samples import BROKEN, break_some

from big_align.data.labels.classes import ClassList
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.mixture import part_seed
from big_align.data.sources.array_source import ArraySource
from big_align.data.text.tokenizers import WordTokenizer

WORDS = WordTokenizer(("number", "a", "photo", "of", "good", *map(str, range(200))), length=8)
CLASSES = ClassList.from_names([f"number {n}" for n in range(10)])
LABELS = {"classes": CLASSES, "templates": ("{}", "a photo of a {}", "good {}"), "label_offset": 30}
CROP = "random_crop(6)|flip_horizontal"


def make_source(size: int, captions: int = 3) -> ArraySource:
    image = (np.arange(size * 192) * 2654435761 >> 7).astype(np.uint8).reshape(size, 8, 8, 3)
    words = [[f"number {n}", f"a {n}", f"{n}"][: min(captions, 1 + n % 3)] for n in range(size)]
    return ArraySource(image, words, np.arange(size) % 10)


def make_mixture(tmp_path) -> TrainLoader:
    labels = {"seed": part_seed(5, "labels"), **LABELS}
    pairs = {"seed": part_seed(5, "pairs"), "keep_label": False, "window": 16}
    return TrainLoader(
        {
            "labels": make_stream(make_source(20), 3, CROP, WORDS, **labels),
            "pairs": make_stream(make_source(45), 9, CROP, WORDS, **pairs),
        },
        rows=np.array([0, 1, 4, 5, 6, 11]),
    )


def make_single(size=50, **choice):
    return lambda tmp_path: make_loader(make_source(size), 8, CROP, WORDS, **choice)


def make_broken(**choice):
    kept = {"max_broken_fraction": 0.1, **choice}
    return lambda tmp_path: make_loader(break_some(tmp_path, BROKEN), 20, CROP, WORDS, **kept)


STREAMS = {
    "captions": (make_single(), "d5c51fbd76c22046"),
    "seed, window and rows": (
        make_single(seed=7, window=11, rows=np.array([1, 2, 6])),
        "ea1f7ffaf6aea444",
    ),
    "two captions, two views": (
        make_single(captions_per_image=2, views_per_image=2),
        "dec6e82698db0c13",
    ),
    "no texts": (make_single(captions_per_image=0), "c524346f82927551"),
    "classes": (make_single(**LABELS), "0960db3a5d0c9098"),
    "broken": (make_broken(), "6970ffad18a4040c"),
    "broken, in processes": (make_broken(num_processes=2), "6970ffad18a4040c"),
    "mixture": (make_mixture, "243c5c03472b75c7"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_batches_are_pinned(name, tmp_path):
    make, expected = STREAMS[name]
    found = hashlib.sha256()
    with make(tmp_path) as loader:
        for batch in itertools.islice(loader.iterate(3), 20):
            for field in sorted(batch):
                found.update(f"{field} {batch[field].dtype} {batch[field].shape}".encode())
                found.update(batch[field].tobytes())
    assert found.hexdigest()[:16] == expected
