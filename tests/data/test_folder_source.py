import shutil

import fsspec
import numpy as np
import pytest
from loaders import make_loader
from samples import encode_image, make_pixels

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, Source
from big_align.data.labels.classes import ClassList
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources.folder_source import FolderSource
from big_align.data.sources.listed_source import SHARD_SIZE
from big_align.data.text.tokenizers import WordTokenizer

SIZES = {"b_two": 3, "a one": 40, "c-three": 2}
ORDER = ("a one", "b_two", "c-three")


@pytest.fixture
def folder(tmp_path):
    """Three classes, whose images tell class and number."""
    for name, size in SIZES.items():
        (tmp_path / name).mkdir()
        for number in range(size):
            pixels = make_pixels(256 * ORDER.index(name) + number)
            (tmp_path / name / f"{number:03d}.PNG").write_bytes(encode_image(pixels))
    (tmp_path / "a one" / "notes.txt").write_text("no image")
    (tmp_path / "classes.json").write_text("[]")
    return tmp_path


def places(source):
    return [(s, i) for s, size in enumerate(source.shard_sizes) for i in range(size)]


def test_labels_are_the_places_of_the_sorted_folders(folder):
    source = FolderSource(str(folder))
    assert isinstance(source, Source) and source.class_names == ORDER
    assert source.shard_sizes.tolist() == [SHARD_SIZE, SHARD_SIZE, 45 - 2 * SHARD_SIZE]
    with EvalLoader(source, "", batch_size=45) as loader:
        (batch,) = loader.images()
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 1], loader.labels())
        expected = [n for name in ORDER for n in range(SIZES[name])]
        assert batch["image"][:, 0, 0, 0].tolist() == expected
    assert [source.read(*place).label for place in places(source)] == loader.labels().tolist()
    assert source.read_text(2, 12) == ([], (2,))
    assert source.name(2, 12) == f"{folder}/c-three/001.PNG"


def test_a_pattern_finds_nested_images(folder):
    for name in ORDER:
        (folder / name / "images").mkdir()
        for file in folder.glob(f"{name}/*.PNG"):
            shutil.move(file, file.parent / "images" / file.name)
    source = FolderSource(f"{folder}/", "images/0*.PNG")
    assert source.class_names == ORDER and source.shard_sizes.sum() == 45
    with pytest.raises(ValueError, match=r"no image at .*/\*/\*: there must be one folder"):
        FolderSource(str(folder))


def test_folders_without_images_are_refused(folder):
    (folder / "aa").mkdir()
    with pytest.raises(ValueError, match=r"/aa holds no image.*\(1 of 4 folders there hold none"):
        FolderSource(str(folder))
    with pytest.raises(ValueError, match="there must be one folder for each class"):
        FolderSource(str(folder / "nowhere"))


def test_folders_of_fsspec(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/pictures/", recursive=True)
    local, remote = FolderSource(str(folder)), FolderSource("memory://pictures")
    assert remote.class_names == local.class_names
    for place in places(local):
        one, two = local.read(*place), remote.read(*place)
        assert (one.image, one.label) == (two.image, two.label)


def test_a_file_that_has_gone_is_a_broken_example(folder):
    source = FolderSource(str(folder))
    (folder / "a one" / "003.PNG").unlink()
    with pytest.raises(BrokenExample, match="there is no file .*a one/003.PNG"):
        source.read(0, 3)


def test_the_texts_of_a_folder_name_the_classes_of_its_images(folder):
    source = FolderSource(str(folder))
    classes = ClassList.from_names(["a one", "b two", "c-three"])
    words = WordTokenizer(("a", "photo", "of", "one", "two", "c-three", "."), length=9)
    with make_loader(source, 45, "", words, classes=classes, templates=("{}",)) as loader:
        batch = loader.batch(0)
    np.testing.assert_array_equal(batch["image"][:, 0, 0, 1], batch["label"])
    expected, _ = words(list(classes.names))
    np.testing.assert_array_equal(batch["text"], expected[batch["label"]])


def test_a_batch_of_a_sorted_list_holds_all_classes_whatever_the_window(tmp_path):
    for name in range(8):
        (tmp_path / str(name)).mkdir()
        for number in range(64):
            (tmp_path / str(name) / f"{number}.png").write_bytes(encode_image(make_pixels(0)))
    source = FolderSource(str(tmp_path))
    words = WordTokenizer(("a",), length=3)
    classes = ClassList.from_names(source.class_names)
    with make_loader(source, 128, "", words, window=128, classes=classes) as loader:
        held = [len(set(loader.batch(step)["label"].tolist())) for step in range(8)]
    assert min(held) >= 4 and np.mean(held) > 5  # as eight stretches drawn from 32 give


def test_a_pattern_that_hides_the_class_is_refused(folder):
    for pattern in ("**", "**/*", "images/**"):
        with pytest.raises(UserError, match=r"pattern = '.*write `\*` for each"):
            FolderSource(str(folder), pattern)


def test_folders_of_a_bucket_without_images_are_refused(folder):
    """As of a disk: classes would be numbered without them."""
    (folder / "aa").mkdir()
    (folder / "aa" / "notes.heic").write_bytes(b"")
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/some_pictures/", recursive=True)
    for path in (str(folder), "memory://some_pictures"):
        with pytest.raises(UserError, match=r"/aa holds no image.*\(1 of 4 folders there hold"):
            FolderSource(path)


@pytest.mark.parametrize("root", ["", "memory:/"])
def test_images_too_deep_for_the_pattern_are_told_once(folder, root, caplog):
    for name in ("more", "more/still"):
        (folder / "b_two" / name).mkdir()
        (folder / "b_two" / name / "0.jpg").write_bytes(encode_image(make_pixels(0)))
    if root:
        fsspec.filesystem("memory").put(f"{folder}/", f"{folder}/", recursive=True)
    with caplog.at_level("WARNING", logger="absl"):
        source = FolderSource(f"{root}{folder}")
    assert source.shard_sizes.sum() == 45 and len(caplog.records) == 1
    assert "2 images lie deeper than CLASS/* and are left out, such as" in caplog.text
    assert "b_two/more/0.jpg; set `pattern`" in caplog.text
