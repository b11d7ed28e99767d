import numpy as np
import pytest

from big_align.data.examples import WrongLabel
from big_align.data.labels.prompts import fill_templates
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.array_source import ArraySource, read_npz
from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES, DIGIT_WORDS, digits_source
from big_align.data.text.tokenizers import WordTokenizer

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)


def test_arrays_are_read_back():
    source = ArraySource(IMAGE, [["a"], ["b", "c"], ["d"]], [4, 5, 6])
    example = source.read(0, 1)
    np.testing.assert_array_equal(example.image, IMAGE[1])
    assert (example.captions, example.label) == (["b", "c"], 5)
    assert source.read_text(0, 1) == (["b", "c"], (5,))
    assert ArraySource(IMAGE, [[]] * 3).read_text(0, 2) == ([], ())


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="3 images, 2 lists of captions and 3 labels"):
        ArraySource(IMAGE, [["a"], ["b"]])


def test_npz_files(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, image=IMAGE, caption=np.array([["a", ""], ["b", "c"], ["d", " "]]))
    source = read_npz(path)
    assert [source.read_text(0, i)[0] for i in range(3)] == [["a"], ["b", "c"], ["d"]]
    assert source.read_text(0, 0)[1] == ()
    np.savez(path, image=IMAGE, caption=np.array(["a", "b", "c"]), label=[0, 1, 2])
    assert read_npz(path).read_text(0, 2) == (["c"], (2,))
    np.savez(path, image=IMAGE, label=[0, 1, 1], class_names=np.array(["cat", "dog"]))
    labeled = read_npz(path)
    assert labeled.read_text(0, 1) == ([], (1,)) and labeled.class_names == ("cat", "dog")
    np.savez(path, image=IMAGE)
    with pytest.raises(ValueError, match="no array 'caption'; it has image"):
        read_npz(path)


def test_rows_of_labels_are_filled_up_with_minus_one(tmp_path):
    source = ArraySource(IMAGE, [[]] * 3, [[3, 1, 3], [-1, -1, -1], [-1, 2, -1]])
    assert [source.read(0, n).labels for n in range(3)] == [(3, 1), (), (2,)]
    assert [source.read(0, n).label for n in (1, 2)] == [-1, 2]
    with pytest.raises(WrongLabel, match="it has the labels 3, 1, where one is wanted"):
        source.read(0, 0).label  # noqa: B018
    path = str(tmp_path / "x.npz")
    np.savez(path, image=IMAGE, label=[[0, -1], [1, 0], [-1, -1]])
    with EvalLoader(read_npz(path), "", batch_size=2) as loader:
        assert loader.label_sets() == [(0,), (1, 0), ()]
        with pytest.raises(ValueError, match="x.npz: 1: it has the labels 1, 0, where one is"):
            loader.labels()


def test_digits_are_split_without_overlap():
    train, test = digits_source("train"), digits_source("test")
    assert (train.shard_sizes[0], test.shard_sizes[0]) == (1437, 360)
    seen = {train.read(0, i).image.tobytes() for i in range(1437)}
    assert not seen & {test.read(0, i).image.tobytes() for i in range(360)}
    with pytest.raises(ValueError, match="split = .*known: train, test"):
        digits_source("val")


def test_captions_of_digits_name_the_label_in_known_words():
    source = digits_source("test")
    tokenizer = WordTokenizer(DIGIT_WORDS, length=12)
    for index in range(50):
        captions, (label,) = source.read_text(0, index)
        assert len(captions) == len(set(captions)) == 2 * len(DIGIT_TEMPLATES)
        assert {n for text in captions for n in text.split() if n.isdigit()} == {str(label)}
        assert set(fill_templates(DIGIT_TEMPLATES, DIGIT_CLASSES[label])) <= set(captions)
        text, text_mask = tokenizer(captions)
        assert not (text == 1).any() and not text_mask.all(1).any()  # nothing unknown, nothing cut


def test_digits_span_the_range_of_bytes():
    source = digits_source("train")
    images = np.stack([source.read(0, i).image for i in range(100)])
    assert images.min() == 0 and images.max() == 255
    assert (images == images[..., :1]).all()
