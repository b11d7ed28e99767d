"""One example that fails, however it fails, is counted, named and replaced."""

import json
import os
import random

import numpy as np
import pytest
from example_kinds import Utf8Tokenizer
from loaders import make_loader
from samples import encode_image, make_array, make_members, write_tar

from big_align.core.errors import BrokenDataError, UserError
from big_align.data.boundary import ONE_EXAMPLE
from big_align.data.examples import BrokenExample
from big_align.data.images import image_ops
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.tar_source import TarSource

EXCEPTIONS = [RecursionError("deep"), MemoryError(), OSError(40, "loop"), OverflowError("1e999")]


class Failing(ArraySource):
    """Raises an exception for some examples."""

    error: Exception
    broken_ones = frozenset({3})

    def read_text(self, shard, index):
        if index in self.broken_ones:
            raise self.error
        return super().read_text(shard, index)


def make_failing(error: Exception, broken=frozenset({3})) -> Failing:
    whole = make_array(20)
    source = Failing(whole._image, whole._captions, whole._labels and list(range(20)))
    source.error, source.broken_ones = error, broken
    return source


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_whatever_an_example_raises_it_is_named_and_replaced(error, caplog):
    source = make_failing(error)
    with make_loader(source, 5, max_broken_fraction=0.1) as loader, caplog.at_level("WARNING"):
        seen = np.concatenate([loader.batch(step)["label"] for step in range(4)])
        assert loader.broken == 1
    assert len(seen) == 20 and set(seen) == set(range(20)) - {3}
    kind = "loop" if type(error) is OSError else type(error).__name__
    assert f"skipped array: 3: {kind}" in caplog.text or "[Errno 40] loop" in caplog.text
    with EvalLoader(source, "", 5, max_broken_fraction=0.1) as loader:
        mask = np.concatenate([batch["mask"] for batch in loader.images()])
        assert loader.captions()[3] == [] and np.flatnonzero(~mask).tolist() == [3]


def test_what_fails_on_every_example_ends_the_run_with_its_reason():
    """So a mistake in a source is not swallowed."""
    source = make_failing(AttributeError("no attribute 'lable'"), frozenset(range(20)))
    with pytest.raises(UserError, match="array: 0: AttributeError: no attribute 'lable'"):
        make_loader(source, 5)


def test_errors_of_the_user_and_interrupts_pass():
    for error in (UserError("the label 7 is not in the class list"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as found, ONE_EXAMPLE:
            raise error
        assert found.value is error


def test_the_reason_is_one_line_that_can_be_printed():
    with pytest.raises(BrokenExample) as error, ONE_EXAMPLE:
        raise KeyError("a\nb \ud800\x1b[31m" + "x" * 10_000)
    text = str(error.value)
    assert text.isprintable() and len(text) < 400 and text.startswith("KeyError: 'a")


def test_a_text_that_the_tokenizer_refuses_is_replaced():
    """The whole batch is tokenized in one call."""
    whole = make_array(20)
    captions = [["\ud800"] if n in (4, 5) else [f"{n}"] for n in range(20)]
    source = ArraySource(whole._image, captions, np.arange(20))
    with make_loader(source, 10, tokenizer=Utf8Tokenizer(), max_broken_fraction=0.1) as loader:
        batches = [loader.batch(step) for step in range(2)]
        assert loader.broken == 2
    seen = [n for batch in batches for n in batch["label"].tolist()]
    texts = [bytes(row[row > 0].tolist()) for batch in batches for row in batch["text"]]
    assert texts == [str(n).encode() for n in seen] and not {4, 5} & set(seen)


@pytest.mark.parametrize("num_processes", [0, 1])
def test_an_image_that_an_operation_does_not_fit_is_replaced(tmp_path, num_processes, caplog):
    members = []
    for number in range(20):
        pixels = np.full((5 if number == 7 else 9, 9, 3), number, np.uint8)
        members += [(f"{number}.png", encode_image(pixels)), (f"{number}.txt", b"number")]
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    options = {"transform": "central_crop(8)", "num_processes": num_processes}
    with make_loader(source, 5, max_broken_fraction=0.1, **options) as loader:
        with caplog.at_level("WARNING"):
            seen = {n for step in range(4) for n in loader.batch(step)["image"][:, 0, 0, 0]}
    assert seen == set(range(20)) - {7}
    assert "x.tar: 7: central_crop(8, 8) is larger than the image" in caplog.text


def test_images_of_different_sizes_are_an_error_of_the_user():
    images = np.zeros((20, 6, 6, 3), np.uint8)

    class Sizes(ArraySource):
        def read(self, shard, index):
            example = super().read(shard, index)
            example.image = example.image[: 1 + index % 2, :1]
            return example

    source = Sizes(images, [["a"]] * 20)
    with make_loader(source, 5) as loader, pytest.raises(UserError, match="all have one size"):
        loader.batch(0)
    with EvalLoader(source, "", 5) as loader, pytest.raises(UserError, match="array: 1: .* one si"):
        list(loader.images())


def test_json_that_no_reader_takes_is_broken(tmp_path):
    """Also where it stands in a field that is not used."""
    texts = ["[" * 100_000 + "]" * 100_000, "9" * 5000, '"\\ud800" 1']
    members = []
    for number, text in enumerate(texts):
        facts = f'{{"caption": "a", "other": {text}}}'.encode()
        members += [make_members(number)[0], (f"{number:06d}.json", facts)]
    source = TarSource(write_tar(tmp_path / "x.tar", members), "json.caption")
    for number in range(3):
        with pytest.raises(BrokenExample, match="is not JSON"):
            source.read(0, number)


def test_half_a_character_is_no_caption(tmp_path):
    members = [make_members(0)[0], ("000000.json", json.dumps({"a": "x \ud83d"}).encode())]
    source = TarSource(write_tar(tmp_path / "x.tar", members), "json.a")
    with pytest.raises(BrokenExample, match=r"half a character \('\\ud83d' at 2\)"):
        source.read(0, 0)


def test_a_dictionary_is_no_list_of_its_keys(tmp_path):
    members = [make_members(0)[0], ("000000.json", b'{"a": {"en": "x", "de": "y"}}')]
    source = TarSource(write_tar(tmp_path / "x.tar", members), "json.a")
    with pytest.raises(BrokenExample, match="not a text or a list of texts"):
        source.read(0, 0)


def test_rows_that_name_no_image_are_broken(tmp_path):
    """A folder, a pipe, a device, a loop, zero bytes, and a path that is too long."""
    image = make_members(0)[0][1]
    for name in ("first.png", "last.png"):
        (tmp_path / name).write_bytes(image)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    os.symlink("/dev/zero", tmp_path / "zero")
    wrong = ["folder", "pipe", "zero", "loop", "a\0b", "x" * 5000, "nothing", "first.png\0"]
    lines = ["image,caption", *(f"{name},text" for name in ["first.png", *wrong, "last.png"])]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    source = CsvSource(f"{tmp_path}/x.csv", caption="caption")
    with EvalLoader(source, "", 4, max_broken_fraction=1.0) as loader:
        mask = np.concatenate([batch["mask"] for batch in loader.images()])[: len(wrong) + 2]
        assert mask.tolist() == [True] + [False] * len(wrong) + [True]
        assert loader.broken == len(wrong)
    with pytest.raises(BrokenExample, match="folder is a folder, not a file"):
        source.read(0, 1)


def test_a_folder_that_is_called_like_an_image_is_broken(tmp_path):
    (tmp_path / "cat" / "x.jpg").mkdir(parents=True)
    (tmp_path / "cat" / "y.jpg").write_bytes(make_members(0)[0][1])
    source = FolderSource(str(tmp_path))
    with EvalLoader(source, "", 2, max_broken_fraction=1.0) as loader:
        (batch,) = loader.images()
        assert batch["mask"].tolist() == [False, True]


def test_a_path_takes_no_room_but_its_own(tmp_path):
    """A path of 100 kB among 500 would make 50 MB of them, were all as wide."""
    (tmp_path / "0.png").write_bytes(make_members(0)[0][1])
    lines = ["image", *[f"{n}.png" for n in range(500)], "x" * 100_000]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    source = CsvSource(f"{tmp_path}/x.csv")
    assert len(source._paths) < 200_000 and source.read(0, 0).key.endswith("/0.png")


def test_a_position_without_substitutes_names_the_shard(tmp_path):
    members = [part for n in range(3) for part in make_members(n)[:2]]
    members = [(name, data[:40] if name.endswith("png") else data) for name, data in members]
    source = TarSource(write_tar(tmp_path / "some.tar", members))
    with pytest.raises(BrokenDataError, match="substitutes are broken; most are in some.tar"):
        make_loader(source, 3, max_broken_fraction=1.0)
    with EvalLoader(source, "", 3, max_broken_fraction=1.0) as loader:
        with pytest.raises(BrokenDataError, match="no image can be .* some.tar .*some.tar: 00000"):
            loader.images()


def test_operations_of_others_may_raise_anything():
    @image_ops.register
    def fails(view, rng):
        raise ZeroDivisionError("of a size")

    try:
        with pytest.raises(BrokenExample, match="ZeroDivisionError: of a size"):
            image_ops.Transform("fails")(np.zeros((4, 4, 3), np.uint8), random.Random(0))
    finally:
        del image_ops.OPERATIONS["fails"]
