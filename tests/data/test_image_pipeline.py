"""Images of a batch: of one size, in several views, replaced where they are broken."""

import itertools

import numpy as np
import pytest
from loaders import FLIP, assert_equal, make_loader
from samples import BROKEN, break_some, encode_image, make_array, make_pixels, write_tar

from big_align.data.images import image_ops
from big_align.data.loading.shuffle import PositionRandom
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


def test_images_of_different_sizes_are_explained(tmp_path):
    members = []
    for number in range(8):
        image = encode_image(make_pixels(number, size=8 + number))
        members += [(f"{number}.png", image), (f"{number}.txt", b"number")]
    with make_loader(TarSource(write_tar(tmp_path / "x.tar", members))) as loader:
        with pytest.raises(ValueError, match="end it with a resize or a crop"):
            loader.batch(0)


def test_views_of_an_image_are_drawn_one_after_the_other():
    source = make_array(30)
    apply = image_ops.Transform(FLIP)
    with (
        make_loader(source, transform=FLIP) as single,
        make_loader(source, transform=FLIP, views_per_image=3) as several,
    ):
        one, three = single.batch(2), several.batch(2)
        np.testing.assert_array_equal(three["image"][:, 0], one["image"])
        for name in ("text", "text_mask", "label", "mask"):
            np.testing.assert_array_equal(three[name], one[name])
        for row in range(8):
            rng = PositionRandom(0, 2 * 8 + row)
            rng.random()  # the caption
            views = [apply(source._image[one["label"][row]], rng) for _ in range(3)]
            np.testing.assert_array_equal(three["image"][row], views)
        rows = np.array([2, 5])
        with make_loader(source, transform=FLIP, views_per_image=3, rows=rows) as part:
            assert_equal(part.batch(2), {name: x[rows] for name, x in three.items()})
    assert (three["image"][:, 0] != three["image"][:, 1]).any((1, 2, 3)).mean() > 0.5


def test_broken_examples_are_replaced_in_all_views(tmp_path):
    source = break_some(tmp_path, BROKEN)
    words = WordTokenizer(("number", *map(str, range(200))), length=4)
    kept = {"tokenizer": words, "batch_size": 20, "max_broken_fraction": 0.1}
    with make_loader(source, views_per_image=2, **kept) as loader:
        for batch in itertools.islice(loader.iterate(0), 10):
            shown = batch["text"][:, None, 2] - 4
            np.testing.assert_array_equal(
                batch["image"][:, :, 0, 0, 0], np.broadcast_to(shown, (20, 2))
            )
        assert loader.broken == len(BROKEN)
