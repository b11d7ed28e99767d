"""A finite set in its own order, every example once."""

import numpy as np
import pytest
from samples import BROKEN, break_some

from big_align.core.errors import BrokenDataError
from big_align.data.examples import BrokenExample
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.tar_source import TarSource


def test_evaluation_counts_every_example_once_in_order(shards):
    source = TarSource(shards, "json.captions", "json.about.label")
    image, mask = np.zeros((4, 8, 4, 4, 3), np.uint8), np.zeros((4, 8), bool)
    for rows in (np.array([0, 1, 6, 7]), np.array([2, 3, 4, 5])):
        with EvalLoader(source, "central_crop(4)", batch_size=8, rows=rows) as loader:
            for number, part in enumerate(loader.images()):
                image[number, rows], mask[number, rows] = part["image"], part["mask"]
            assert number == 3
            assert loader.captions() == [[f"number {n}", f"n {n}"] for n in range(27)]
            np.testing.assert_array_equal(loader.labels(), np.arange(27) % 10)
    image, mask = image.reshape(32, 4, 4, 3), mask.reshape(32)
    assert mask.tolist() == [True] * 27 + [False] * 5
    assert image[:27, 0, 0, 0].tolist() == list(range(27))
    assert not image[27:].any() and image.shape == (32, 4, 4, 3)


def test_evaluation_masks_broken_examples(tmp_path):
    source = break_some(tmp_path, BROKEN)
    with EvalLoader(source, "", batch_size=64, max_broken_fraction=0.5) as loader:
        mask = np.concatenate([batch["mask"] for batch in loader.images()])[:200]
        assert set(np.flatnonzero(~mask)) == BROKEN == set(range(200)) - set(np.flatnonzero(mask))
        captions = loader.captions()
        assert loader.broken == len(BROKEN)
    assert [n for n, texts in enumerate(captions) if not texts] == [4, 120, 122]
    with EvalLoader(source, "", batch_size=64, max_broken_fraction=0.01) as loader:
        with pytest.raises(BrokenDataError, match="most are in train-0[03].tar"):
            list(loader.images())


@pytest.mark.slow
def test_the_fraction_of_broken_examples_is_of_those_that_were_read():
    """100 of 10,000; were they not counted as read, the 41st of 2000 would stop."""

    class Some(ArraySource):
        def read(self, shard, index):
            if index % 100 == 7:
                raise BrokenExample("broken")
            return super().read(shard, index)

    source = Some(np.zeros((10_000, 1, 1, 3), np.uint8), [[]] * 10_000)
    with EvalLoader(source, "", batch_size=500, max_broken_fraction=0.02, num_threads=1) as loader:
        assert sum(batch["mask"].sum() for batch in loader.images()) == 9900
        assert loader.broken == 100
