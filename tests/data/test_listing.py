"""A file counts once, whatever links lead to it: links change nothing about what is read."""

import glob
import hashlib
import io
import os
import random
import tarfile

import pytest

from big_align.config.components.source_flags import recognize_source
from big_align.data import listing
from big_align.data.derived.split_source import SplitSource
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.folder_source import FolderSource, ImageFiles
from big_align.data.sources.tar_source import TarSource
from big_align.prepare.inputs import find_inputs
from tests.data.samples import encode_image, make_pixels

CLASSES = ("cat", "dog")


@pytest.fixture
def photos(tmp_path):
    """Two folders of images with texts."""
    for number in range(24):
        folder = tmp_path / "photos" / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(encode_image(make_pixels(number)))
        (folder / f"{number}.txt").write_text(f"text {number}")
    return tmp_path / "photos"


def add_links(photos):
    """Adds links to files and folders, some of which come first by name."""
    (photos / "a").symlink_to("dog")
    (photos / "latest").symlink_to("cat", target_is_directory=True)
    for name in ("0", "again", "cat/up"):
        (photos / name).symlink_to(photos)
    (photos / "cat" / "0again.png").symlink_to("2.png")
    (photos / "cat" / "0again.txt").symlink_to("2.txt")
    os.link(photos / "dog/1.png", photos / "dog/hard.png")
    os.link(photos / "dog/1.txt", photos / "dog/hard.txt")


def read_all(source):
    places = [(s, n) for s, size in enumerate(source.shard_sizes) for n in range(size)]
    found = [source.read(*place) for place in places]
    return [(one.key, hashlib.sha256(one.image).hexdigest(), one.labels) for one in found]


OPENED = {
    "a folder": lambda top: ImageFiles(str(top)),
    "a pattern": lambda top: ImageFiles(f"{top}/**/*.png"),
    "a pattern of two steps": lambda top: ImageFiles(f"{top}/*/*.png"),
    "folders of a pattern": lambda top: ImageFiles(f"{top}/*"),
    "texts beside images": lambda top: FilePairsSource(str(top)),
    "several folders": lambda top: FilePairsSource(f"{top}/*,{top}/cat"),
    "classes": lambda top: FolderSource(str(top)),
}


@pytest.mark.parametrize("kind", OPENED)
def test_links_change_nothing(photos, kind):
    before = OPENED[kind](photos)
    found = read_all(before)
    assert len(found) == len({digest for _, digest, _ in found}) == 24
    add_links(photos)
    after = OPENED[kind](photos)
    assert read_all(after) == found and after.class_names == before.class_names


def test_what_is_held_out_is_not_trained_on(photos):
    add_links(photos)
    source = ImageFiles(f"{photos}/**/*.png")
    kept, tested = (
        {digest for _, digest, _ in read_all(half)}
        for half in (SplitSource(source, 0.3), SplitSource(source, 0.3, held_out=True))
    )
    assert kept and tested and not kept & tested


def test_shards_of_two_revisions_of_a_cache_are_read_once(tmp_path):
    (tmp_path / "blobs").mkdir()
    for number in range(3):
        with tarfile.open(tmp_path / "blobs" / f"{number}", "w") as tar:
            data = encode_image(make_pixels(number))
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for revision in "ab"[: 2 - number % 2]:
            folder = tmp_path / "snapshots" / revision
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.tar").symlink_to(f"../../blobs/{number}")
    for path in ("snapshots/*/*.tar", "**/*.tar", "snapshots/{a,b}/*.tar"):
        assert TarSource(f"{tmp_path}/{path}", "").shard_sizes.tolist() == [1, 1, 1]
        assert len(find_inputs(f"{tmp_path}/{path}", "tar").paths) == 3
    paths = [f"{tmp_path}/snapshots/{revision}/0.tar" for revision in "ab"]
    assert listing.expand_paths(paths) == paths[:1]


def test_a_file_in_the_folders_of_two_classes_has_both_labels(photos):
    os.link(photos / "cat/2.png", photos / "dog/0.png")
    (photos / "dog" / "3.gif").symlink_to("../cat/4.png")
    source = FolderSource(str(photos))
    labels = {key.rpartition("/")[2]: label for key, _, label in read_all(source)}
    assert len(labels) == 24 and source.class_names == CLASSES
    assert labels["2.png"] == labels["4.png"] == (0, 1) and labels["0.png"] == (0,)


def test_texts_beside_each_name_of_an_image_are_its_captions(photos):
    for name in ("2a", "2b", "2c"):
        (photos / "cat" / f"{name}.png").symlink_to("2.png")
        (photos / "cat" / f"{name}.txt").write_text("text 2" if name == "2c" else f"text {name}")
    source = FilePairsSource(str(photos))
    texts = {source.key(0, n): source.read_text(0, n)[0] for n in range(12)}
    assert source.shard_sizes.tolist() == [12, 12] and texts["4"] == ["text 4"]
    assert texts["2"] == ["text 2", "text 2a", "text 2b"]


def test_rows_of_a_table_that_name_a_file_by_links_are_one_example(photos):
    add_links(photos)
    names = ["cat/0.png", "latest/0.png", "cat/0again.png", "dog/1.png", "again/cat/2.png", "9.png"]
    rows = [f"{name},text {number}" for number, name in enumerate(names)]
    (photos / "table.csv").write_text("\n".join(["file,text", *rows]))
    source = CsvSource(str(photos / "table.csv"))
    texts = [source.read_text(0, n)[0] for n in range(int(source.shard_sizes.sum()))]
    assert texts == [["text 0", "text 1"], ["text 2", "text 4"], ["text 3"], ["text 5"]]


def test_many_links_upward_end(photos):
    for number in range(30):  # 2^30 ways and more lead through them
        (photos / f"up{number}").symlink_to(".")
        (photos / "cat" / f"up{number}").symlink_to("..")
    assert len(listing.find(f"{photos}/**/*.png")) == 24
    assert len(listing.find(f"{photos}/**/cat/**/*.png")) >= 12
    assert len(listing.list_below(str(photos))) == 48
    assert recognize_source(str(photos)) == "files"


def test_disks_that_give_all_files_one_number_lose_none(photos, monkeypatch):
    monkeypatch.setattr(listing, "_read_numbers", lambda names: dict.fromkeys(names, (0, 0)))
    assert len(read_all(ImageFiles(str(photos)))) == 24
    add_links(photos)
    assert len(read_all(ImageFiles(str(photos)))) == 24


@pytest.mark.parametrize("seed", range(3))
def test_without_links_patterns_match_what_they_match_in_python(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    names = ["a", "b.c", ".hidden", "[x]", "d e"]
    folders = [tmp_path]
    for _ in range(12):
        folder = rng.choice(folders) / rng.choice(names)
        folder.mkdir(exist_ok=True)
        folders.append(folder)
        (folder / f"{rng.randrange(3)}.jpg").touch()
    monkeypatch.chdir(tmp_path)
    tops = ("", "./", f"{tmp_path}/", f"{tmp_path}/*/", "a/")
    for top in tops:
        for tail in ("**/*.jpg", "**/a/*.jpg", "**/a/**/*.jpg", "**/**/[01].jpg", "**/*/", "*.jpg"):
            expected = sorted(set(glob.glob(top + tail, recursive=True)))
            assert listing.find(top + tail) == expected, top + tail


def test_links_are_told_once(photos, caplog):
    add_links(photos)
    with caplog.at_level("WARNING", logger="absl"):
        for _ in range(3):
            ImageFiles(f"{photos}/**/*.png")
    assert caplog.text.count("left out 5 links to folders that are listed already") == 1
    assert caplog.text.count("2 files or folders have several names and are read once") == 1
    assert f"{photos}/cat/2.png, which is also {photos}/cat/0again.png" in caplog.text
