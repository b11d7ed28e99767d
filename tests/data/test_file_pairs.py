"""Images beside files of their texts: which are examples, under which names and keys."""

import fsspec
import pytest
from samples import encode_image, make_pixels

from big_align.data.derived.split_source import SplitSource
from big_align.data.sources.file_pairs import FilePairsSource
from big_align.data.sources.folder_source import FolderSource

FLAT = ["002", "009", "020", "021", "023", "026", "028", "035", "039"]
DOTTED = ["2023.02", "2023.06", "2023.18", "2023.34", "2023.35", "2023.39"]


def write_pairs(folder, names, image="png", text="txt"):
    """Writes pairs whose text is their name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.{image}").write_bytes(encode_image(make_pixels(0)))
        (folder / f"{name}.{text}").write_text(name)
    return FilePairsSource(str(folder), text)


def list_texts(source):
    sizes = enumerate(source.shard_sizes.tolist())
    return [source.read_text(s, i)[0][0] for s, size in sizes for i in range(size)]


@pytest.mark.parametrize("names", [("main", "detail"), ("front", "back", "side")])
def test_of_names_that_repeat_in_folders_about_the_fraction_is_held_out(names, tmp_path):
    source = write_pairs(tmp_path, [f"p{n:02d}/{name}" for n in range(40) for name in names])
    held, rest = (SplitSource(source, 0.3, part) for part in (True, False))
    total = 40 * len(names)
    assert abs(held.shard_sizes.sum() - 0.3 * total) < 4 * (total * 0.3 * 0.7) ** 0.5
    assert sorted(list_texts(held) + list_texts(rest)) == sorted(list_texts(source))
    images = SplitSource(FolderSource(str(tmp_path)), 0.3, held_out=True)
    told = (images.key(s, i) for s, size in enumerate(images.shard_sizes) for i in range(size))
    assert sorted(list_texts(held)) == sorted(
        "/".join(key.removesuffix(".png").split("/")[-2:]) for key in told
    )


def test_what_is_held_out_of_names_that_differ_is_pinned(tmp_path):
    """Data that a run has held out stay held out, in one folder or in many."""
    flat = write_pairs(tmp_path / "flat", [f"{n:03d}" for n in range(40)])
    nested = write_pairs(tmp_path / "nested", [f"{n // 10}/{n:03d}" for n in range(40)])
    dotted = write_pairs(tmp_path / "dotted", [f"2023.{n:02d}" for n in range(40)])
    held = [list_texts(SplitSource(s, 0.2, held_out=True)) for s in (flat, nested, dotted)]
    assert held[0] == [text.rpartition("/")[2] for text in held[1]] == FLAT
    assert held[2] == DOTTED


@pytest.mark.parametrize("remote", [False, True])
def test_pairs_are_read_at_every_depth(remote, tmp_path):
    names = ["0", "a/1", "a/b/2", "a/b/c/d/3"]
    source = write_pairs(tmp_path, names)
    if remote:
        fsspec.filesystem("memory").put(f"{tmp_path}/", f"{tmp_path}/", recursive=True)
        source = FilePairsSource(f"memory:/{tmp_path}")
    assert list_texts(source) == names
    assert [source.key(shard, 0) for shard in range(4)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("caption", ["txt", "TXT"])
def test_endings_are_the_same_in_capitals(caption, tmp_path):
    write_pairs(tmp_path, ["a", "2023.01"], "JPG", "TXT")
    write_pairs(tmp_path, ["b"], "Png", "txt")
    (tmp_path / "b.TXT").write_text("the other")
    source = FilePairsSource(str(tmp_path), caption)
    told = {source.key(0, n): source.read(0, n).captions for n in range(3)}
    other = {"txt": "b", "TXT": "the other"}[caption]
    assert told == {"2023.01": ["2023.01"], "a": ["a"], "b": [other]}
    assert source.name(0, 0).endswith("/a.JPG")


def test_fields_are_read_of_json_in_capitals(tmp_path):
    write_pairs(tmp_path, ["a"], text="JSON")
    (tmp_path / "a.JSON").write_text('{"caption": "a dog"}')
    assert FilePairsSource(str(tmp_path), "json.caption").read_text(0, 0)[0] == ["a dog"]
