"""Real shards, found through $BIG_ALIGN_DATA."""

import numpy as np
import pytest
from loaders import make_loader

from big_align.data.examples import split_member
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


@pytest.mark.slow
def test_flickr8k_test_has_five_captions_each(data_dir):
    source = TarSource(f"{data_dir}/flickr8k/test-*.tar", caption="json.captions")
    with EvalLoader(source, "resize(72)|central_crop(64)", batch_size=300) as loader:
        assert loader.num_examples == 1000
        assert {len(captions) for captions in loader.captions()} == {5}
        batches = list(loader.images())
        assert sum(batch["mask"].sum() for batch in batches) == 1000 and loader.broken == 0
        assert [batch["image"].shape for batch in batches] == [(300, 64, 64, 3)] * 4
        assert (np.concatenate([b["image"] for b in batches])[:1000].std((1, 2, 3)) > 5).all()


@pytest.mark.slow
def test_flickr8k_train_is_visited_once_an_epoch(data_dir):
    source = TarSource(f"{data_dir}/flickr8k/train-{{00000..00005}}.tar", caption="json.captions")
    words = WordTokenizer(("dog", "man", "woman"), length=8)
    with make_loader(source, 1000, "resize(8)", words) as loader:
        seen = np.concatenate([loader.batch(step)["image"] for step in range(6)])
    assert loader.broken == 0
    assert len(np.unique(seen.reshape(6000, -1), axis=0)) > 5950


@pytest.mark.parametrize("split", ["train", "test"])
def test_twemoji_stand_on_white(data_dir, split):
    source = TarSource(f"{data_dir}/twemoji/{split}-*.tar")
    with EvalLoader(source, "", batch_size=100) as loader:
        image = np.concatenate([b["image"][b["mask"]] for b in loader.images()])
        assert len(image) == loader.num_examples == {"train": 1676, "test": 198}[split]
        assert all(loader.captions())
    corners = image[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert np.median(corners) == 255 and (corners == 255).all(-1).mean() > 0.9


@pytest.mark.slow
def test_grocery_and_tiny_imagenet_labels(data_dir):
    for path, label, count in (
        ("grocery/iconic-*.tar", "cls", 81),
        ("grocery/val-*.tar", "json.label", 81),
        ("tiny_imagenet/val-*.tar", "cls", 202),
    ):
        source = TarSource(f"{data_dir}/{path}", caption=None, label=label)
        with EvalLoader(source, "resize(16)", batch_size=512) as loader:
            labels = loader.labels()
            assert labels.min() >= 0 and labels.max() < count
            assert sum(batch["mask"].sum() for batch in loader.images()) == len(labels)
    assert split_member("json.label") == ("json", ("label",))
