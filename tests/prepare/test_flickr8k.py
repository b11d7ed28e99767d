"""Flickr8k from a miniature of the archive's layout; the configs read what it becomes."""

import csv
import io
import json

import pytest
from PIL import Image
from raw_pairs import draw_image, read_tar

from big_align.config.components import source_flags, tables
from big_align.config.components.signatures import make_named
from big_align.tools import flickr8k
from tests.run_main import ROOT

SPLITS = {"train": 7, "dev": 2, "test": 2}
LISTS = {"train": "trainImages", "dev": "devImages", "test": "testImages"}


def name_of(number):
    return f"{1000 + number}_{number:010x}.jpg"


def captions_of(number):
    return [f"A dog , number {number} , runs ({n}) ." for n in range(5)]


def write_archive(folder, kaggle=False):
    """Writes eleven photographs of the splits, one of none, and the slip of the captions."""
    images = folder / ("Images" if kaggle else "Flicker8k_Dataset")
    text = folder if kaggle else folder / "Flickr8k_text"
    images.mkdir(parents=True), text.mkdir(exist_ok=True)
    for number in range(12):
        (images / name_of(number)).write_bytes(draw_image(2 * number + 1, 60, 40))
    rows = [(name_of(n), k, c) for n in range(12) for k, c in enumerate(captions_of(n))]
    if kaggle:
        with open(folder / "captions.txt", "w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerows([("image", "caption"), *((name, c) for name, _, c in rows)])
    else:
        rows.insert(17, ("2258277193_586949ec62.jpg.1", 0, "A dog that is not there ."))
        lines = [f"{name}#{k}\t{c}\n" for name, k, c in rows]
        (text / "Flickr8k.token.txt").write_text("".join(lines))
    at = 0
    for split, count in SPLITS.items():
        names = [name_of(n) for n in reversed(range(at, at + count))]
        (text / f"Flickr_8k.{LISTS[split]}.txt").write_text("\n".join(names) + "\n")
        at += count
    return folder, text


def run(capsys, folder, output, *flags):
    status = flickr8k.main([f"--input={folder}", f"--output={output}", *flags])
    printed = capsys.readouterr()
    return status, printed.out, printed.err.splitlines()[-1:] and printed.err.splitlines()[-1]


@pytest.mark.parametrize("kaggle", [False, True])
def test_the_config_of_the_readme_reads_the_shards(kaggle, tmp_path, capsys, monkeypatch):
    folder, _ = write_archive(tmp_path / "archive", kaggle)
    status, out, _ = run(capsys, folder, tmp_path / "data" / "flickr8k", "--shard_size=3")
    assert status == 0 and "train: 7 photographs, 3 shards" in out
    assert "1 photographs are in no split" in out
    assert ("1 captions are of a photograph that there is not" in out) == (not kaggle)
    monkeypatch.setenv("BIG_ALIGN_DATA", str(tmp_path / "data"))
    scope = {}
    exec(open(f"{ROOT}/configs/align_flickr8k.py").read(), scope)
    config = scope["get_config"]()
    found = {}
    for node in (config.data.source, config.evaluators.retrieval.source):
        source = make_named(tables.SOURCES, node.to_dict(), "source")
        sizes = source.shard_sizes.tolist()
        assert max(sizes) - min(sizes) <= 1
        for place in ((s, n) for s, size in enumerate(sizes) for n in range(size)):
            example = source.read(*place)
            found[example.key] = example.captions
            assert Image.open(io.BytesIO(example.image)).size == (128, 128)
    assert found == {name_of(n)[:-4]: captions_of(n) for n in range(11)}
    members = read_tar(tmp_path / "data" / "flickr8k" / "test-00000.tar")
    key = name_of(9)[:-4]
    assert json.loads(members[f"{key}.json"])["flickr_id"] == "1009"
    assert members[f"{key}.txt"].decode() == captions_of(9)[0]


def test_files_are_kept_as_they_are_where_that_is_asked_for(tmp_path, capsys):
    folder, _ = write_archive(tmp_path / "archive")
    assert run(capsys, folder, tmp_path / "out", "--side=0")[0] == 0
    source, _ = source_flags.open_source(f"{tmp_path}/out/train-*.tar")
    images = {source.read(0, n).image for n in range(7)}
    assert images == {draw_image(2 * n + 1, 60, 40) for n in range(7)}
    first = (tmp_path / "out" / "train-00000.tar").read_bytes()
    assert run(capsys, folder, tmp_path / "out", "--side=0")[0] == 0
    assert (tmp_path / "out" / "train-00000.tar").read_bytes() == first
    status, _, error = run(capsys, folder, tmp_path / "out", "--shard_size=2000", "--side=64")
    assert status == 0
    (tmp_path / "out" / "train-00007.tar").write_bytes(first)
    status, _, error = run(capsys, folder, tmp_path / "out")
    assert status == 1 and "train-00007.tar of something else" in error


def spoil(text, images, name):
    token = text / "Flickr8k.token.txt"
    if name == "no list":
        (text / "Flickr_8k.devImages.txt").unlink()
    elif name == "no captions":
        token.unlink()
    elif name == "a caption of no image":
        token.write_text(token.read_text() + "77_a.jpg#0\tA cat .\n")
    elif name == "a line of no caption":
        token.write_text("1000.jpg A cat .\n" + token.read_text())
    elif name == "no image":
        (images / name_of(8)).unlink()
        kept = [x for x in token.read_text().splitlines(True) if not x.startswith(name_of(8))]
        token.write_text("".join(kept))
    elif name == "two lists":
        path = text / "Flickr_8k.testImages.txt"
        path.write_text(path.read_text() + name_of(0) + "\n")
    elif name == "a broken image":
        (images / name_of(3)).write_bytes(b"no image")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no list", "has no Flickr_8k.devImages.txt, in it or in a folder in it: the list of the"),
        ("no captions", "has no Flickr8k.token.txt or captions.txt"),
        ("a caption of no image", "Flickr8k.token.txt, line 62: there is no photograph 77_a.jpg"),
        ("a line of no caption", "line 1 does not read as PHOTOGRAPH.jpg#0, a tab, and a caption"),
        ("no image", f"devImages.txt, line 1: there is no photograph {name_of(8)} in"),
        ("two lists", f"line 3: the photograph {name_of(0)} is in Flickr_8k.trainImages.txt too"),
        ("a broken image", f"{name_of(3)} cannot be used: "),
    ],
)
def test_a_mistake_of_the_archive_is_one_line(name, message, tmp_path, capsys):
    folder, text = write_archive(tmp_path / "archive")
    spoil(text, folder / "Flicker8k_Dataset", name)
    status, _, error = run(capsys, folder, tmp_path / "out")
    assert status == 1 and error.startswith("error: ") and message in error
    assert not (tmp_path / "out" / "train-00000.tar").exists()
