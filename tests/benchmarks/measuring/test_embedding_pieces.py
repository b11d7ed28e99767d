"""A source in pieces has the same examples; its fingerprint follows its images alone."""

import numpy as np

from big_align.data.derived.source_pieces import Pieces, fingerprint_images
from big_align.data.sources.array_source import ArraySource
from tests.data.samples import make_array


def test_pieces_have_every_example_in_its_order():
    source = make_array(10)
    cut = Pieces(source, 4)
    assert cut.shard_sizes.tolist() == [4, 4, 2]
    assert [cut.shard_name(n) for n in range(3)][2] == "examples 8 to 9"
    places = [(s, i) for s, size in enumerate(cut.shard_sizes.tolist()) for i in range(size)]
    assert [cut.read(*place).key for place in places] == [str(n) for n in range(10)]
    texts = [source.read_text(0, number) for number in range(10)]
    assert [cut.read_text(*place) for place in places] == texts
    assert cut.name(2, 1) == source.name(0, 9)


def test_labels_captions_and_cuts_are_no_part_of_the_fingerprint():
    source = make_array(300)
    again = ArraySource(source._image, [["x"]] * 300, np.zeros(300, int), "other", None)
    assert fingerprint_images(source) == fingerprint_images(again)
    assert fingerprint_images(source) == fingerprint_images(Pieces(source, 7))


def test_images_their_number_and_their_order_are():
    source = make_array(300)
    known = {fingerprint_images(source)}
    for image in (source._image[:-1], source._image[::-1], source._image // 2):
        other = ArraySource(np.ascontiguousarray(image), [["x"]] * len(image))
        known.add(fingerprint_images(other))
    assert len(known) == 4
