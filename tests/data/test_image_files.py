"""Images that a pattern or a folder names, each once, in the order of their names."""

import re

import pytest

from big_align.config.components.source_flags import open_source
from big_align.core.errors import UserError
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.folder_source import FolderSource, ImageFiles
from tests.data.samples import encode_image, make_pixels

NAMES = ("a.jpg", "b/c.png", "b/d/e.JPG", "b/d/f.jpg")


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(NAMES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encode_image(make_pixels(number)))
    (tmp_path / "b/notes.txt").write_text("no image")
    (tmp_path / "b/folder.jpg").mkdir()
    return tmp_path


def list_keys(source):
    sizes = source.shard_sizes.tolist()
    places = [(shard, index) for shard, size in enumerate(sizes) for index in range(size)]
    assert all(source.read(*place).key == source.key(*place) for place in places)
    assert all(source.read_text(*place) == ([], ()) for place in places)
    return [source.key(*place) for place in places]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", NAMES),
        ("**/*.jpg", ("a.jpg", "b/d/f.jpg")),
        ("*/*", ("b/c.png", "b/d/e.JPG", "b/d/f.jpg")),  # what matches are files and folders
        ("**/*.{jpg,png}", ("a.jpg", "b/d/f.jpg", "b/c.png")),
        ("a.jpg", ("a.jpg",)),
    ],
)
def test_a_path_names_images(folder, pattern, expected):
    found = list_keys(ImageFiles(f"{folder}/{pattern}".rstrip("/")))
    assert found == [f"{folder}/{name}" for name in expected]


def test_flags_tell_images_by_their_endings(folder):
    source, node = open_source(f"{folder}/**/*.jpg", captions=True)
    assert node == {"name": "images", "path": f"{folder}/**/*.jpg"}
    assert source.read(0, 0).image == (folder / "a.jpg").read_bytes()


def test_images_whose_endings_are_not_read_are_told_once(folder, caplog):
    for name in ("b/1.heic", "b/2.HEIC", "b/3.avif"):
        (folder / name).touch()
    for kind in ("jfif", "jpe"):
        (folder / f"b/photo.{kind}").write_bytes(encode_image(make_pixels(9), "JPEG"))
    (folder / "b/photo.txt").write_text("a photo")
    told = (
        r"left out from .*: 3 with endings that are not read, \.avif, \.heic; convert them to JPEG"
    )
    with caplog.at_level("WARNING", logger="absl"):
        found = list_keys(ImageFiles(str(folder)))
        assert {f"{folder}/b/photo.jfif", f"{folder}/b/photo.jpe"} < set(found) and len(found) == 6
        assert len(re.findall(told, caplog.text)) == 1
        list_keys(ImageFiles(f"{folder}/**/*.jpg"))  # which asks for no others
        assert len(re.findall(told, caplog.text)) == 1
        FolderSource(str(folder))
        assert len(re.findall(told, caplog.text)) == 2
        (folder / "b/photo.jpe").unlink()
        FilePairsSource(str(folder))
        assert len(re.findall(told, caplog.text)) == 3


def test_where_there_is_no_image_it_is_told(folder):
    with pytest.raises(UserError, match="no file matches"):
        ImageFiles(f"{folder}/*.webp")
    with pytest.raises(UserError, match="no image at .*none of the files there ends in jpg"):
        ImageFiles(f"{folder}/b/notes.txt")
