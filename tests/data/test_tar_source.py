import io
import itertools
import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from loaders import make_loader
from samples import encode_image, make_members, make_pixels, write_tar

from big_align.core.errors import UserError
from big_align.data.examples import BrokenExample, WrongLabel
from big_align.data.labels.classes import ClassList
from big_align.data.loading.evaluation_loader import EvalLoader
from big_align.data.sources import tar_source
from big_align.data.sources.tar_source import TarSource
from big_align.data.text.tokenizers import WordTokenizer


def read_all(source):
    return [
        source.read(shard, index)
        for shard, size in enumerate(source.shard_sizes)
        for index in range(size)
    ]


def test_examples_are_those_of_a_sequential_read(shards):
    source = TarSource(shards, caption="json.captions", label="json.about.label")
    assert source.shard_sizes.tolist() == [7, 5, 9, 6] and source.broken.sum() == 0
    for number, example in enumerate(read_all(source)):
        assert example.key == f"{number:06d}"
        assert example.image == make_members(number)[0][1]
        assert example.captions == [f"number {number}", f"n {number}"]
        assert example.label == number % 10
    assert source.name(1, 2) == "train-00001.tar: 000009"


def test_members_are_chosen_by_name(shards):
    assert TarSource(shards).read_text(2, 3) == (["number 15"], ())
    assert TarSource(shards, caption=None, label="cls").read_text(2, 3) == ([], (5,))
    assert TarSource(shards, label="cls").read_text(2, 3) == (["number 15"], (5,))


def test_a_json_list_is_several_labels(tmp_path):
    """One or more each once, none, and what is no list of class numbers."""
    found = [[14, 6, 14], [3], 8, [], [2, "cat"], {"a": 1}]
    members = [part for n in range(len(found)) for part in make_members(n)[:1]]
    members += [
        (f"{n:06d}.json", json.dumps({"labels": labels}).encode()) for n, labels in enumerate(found)
    ]
    source = TarSource(write_tar(tmp_path / "x.tar", members), None, "json.labels")
    with EvalLoader(source, "", batch_size=8, max_broken_fraction=0.5) as loader:
        assert loader.label_sets() == [(14, 6), (3,), (8,), (), (), ()] and loader.broken == 2
    assert [source.read(0, n).label for n in (1, 2, 3)] == [3, 8, -1]
    for number in (4, 5):
        with pytest.raises(WrongLabel, match="not an integer"):
            source.read_text(0, number)
    classes = ClassList.from_names(tuple("abcdefghij"))
    with pytest.raises(UserError, match="x.tar: 000000: it has the labels 14, 6, where one"):
        make_loader(source, 2, tokenizer=WordTokenizer(("a",), 4), classes=classes)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_scan_equals_tarfile(tmp_path, kind):
    """Every format of headers, with names of every length and members of awkward sizes."""
    folder = "deep/" * 12
    names = ["a.jpg", "sub/b.c.jpg", folder + "x" * 60 + ".jpg"]
    if kind != tarfile.USTAR_FORMAT:
        names += [folder * 4 + "y" * 120 + ".jpg", "grün/日本.jpg"]
    sizes = (0, 1, 511, 512, 513)
    named = zip(itertools.cycle(names), sizes, strict=False)
    members = [(name, b"x" * size) for name, size in named]
    path = write_tar(tmp_path / "x.tar", members, format=kind)
    with tarfile.open(path, "a", format=kind) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        link = tarfile.TarInfo("link.jpg")
        link.type = tarfile.SYMTYPE
        link.linkname = "z" * (100 if kind == tarfile.USTAR_FORMAT else 150)
        tar.addfile(link)
        last = tarfile.TarInfo("last.jpg")
        last.size = 3
        tar.addfile(last, io.BytesIO(b"end"))
    with tarfile.open(path) as tar:
        wanted = [(m.name, m.offset_data, m.size, "") for m in tar if m.isfile()]
    with open(path, "rb") as file:
        found = list(tar_source.scan_members(file, (tmp_path / "x.tar").stat().st_size))
    told = f"link.jpg is a symbolic link to {link.linkname[:80]}, which is not in the shard; "
    assert found == [
        *wanted,
        ("link.jpg", 0, 0, f"{told}`tar --dereference` packs the files themselves"),
    ]


def add_special(tar, name, kind, target="") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    tar.addfile(info)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_links_are_the_members_that_they_name(tmp_path, kind):
    """As tarfile follows them; what leads out of the shard or in a circle is told by its kind."""
    path = write_tar(tmp_path / "x.tar", make_members(0)[:2], format=kind)
    folder = "deep" * (10 if kind == tarfile.USTAR_FORMAT else 40)
    with tarfile.open(path, "a", format=kind) as tar:
        for number, (link, target) in enumerate(
            [
                (tarfile.LNKTYPE, "000000.{}"),
                (tarfile.SYMTYPE, "./deeper/../000000.{}"),
                (tarfile.SYMTYPE, "000004.{}"),  # a link that comes later
                (tarfile.SYMTYPE, "000000.{}"),
                (tarfile.LNKTYPE, f"{folder}/a.{{}}"),
                (tarfile.SYMTYPE, "000006.{}"),  # a circle
                (tarfile.SYMTYPE, "../../etc/passwd.{}"),
                (tarfile.LNKTYPE, "/etc/passwd.{}"),
            ],
            start=1,
        ):
            for ending in ("png", "txt"):
                add_special(tar, f"{number:06d}.{ending}", link, target.format(ending))
            if number == 4:
                for name, data in make_members(9)[:2]:
                    info = tarfile.TarInfo(f"{folder}/a.{name[-3:]}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        for number, special in ((20, tarfile.CHRTYPE), (21, tarfile.FIFOTYPE), (22, b"Z")):
            tar.addfile(tarfile.TarInfo(f"{number:06d}.txt"))
            add_special(tar, f"{number:06d}.png", special)
    source = TarSource(path)
    found = {source.key(0, n): source.read(0, n) for n in range(source.shard_sizes[0])}
    assert sorted(found) == [*(f"{n:06d}" for n in range(6)), f"{folder}/a"]
    with tarfile.open(path) as tar:
        for key, example in found.items():
            assert example.image == tar.extractfile(f"{key}.png").read()
            assert example.captions == [tar.extractfile(f"{key}.txt").read().decode().strip()]
    assert source.broken.tolist() == [6]
    for number, told in (
        (6, "a symbolic link to 000006"), (7, "a symbolic link to ../../etc/passwd"),
        (8, "a hard link to /etc/passwd"), (20, "a device"), (21, "a pipe"),
        (22, "of the unknown kind b'Z'"),
    ):  # fmt: skip
        with open(path, "rb") as file:
            faults = [
                m[3] for m in tar_source.scan_members(file, 10**6) if f"{number:06d}.png" == m[0]
            ]
        assert told in faults[0]


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax", "--sparse-version=0.1"],
                                     ["--format=pax", "--sparse-version=1.0"]])  # fmt: skip
def test_sparse_files_are_named_and_the_rest_is_read(tmp_path, options):
    """GNU's tar makes them of files with holes, which an image has not; here with many parts."""
    for name, data in [part for n in range(3) for part in make_members(n)[:2]]:
        (tmp_path / name).write_bytes(data)
    with open(tmp_path / "000001.png", "r+b") as file:
        for part in range(40):
            file.seek(2**16 * part)
            file.write(b"x" * 4096)
    names = sorted(path.name for path in tmp_path.iterdir())
    call = ["tar", "--sparse", *options, "-cf", "x.tar", *names]
    subprocess.run(call, cwd=tmp_path, check=True, timeout=60)
    source = TarSource(f"{tmp_path}/x.tar")
    assert [source.key(0, n) for n in range(source.shard_sizes[0])] == ["000000", "000002"]
    assert source.broken.tolist() == [1]
    assert source.faults == ("x.tar: 000001.png is a sparse file, which is not read",)


def test_keys_group_members_that_are_not_neighbors(tmp_path):
    members = sorted((part for n in range(3) for part in make_members(n)), key=lambda m: m[0][-3:])
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    assert [e.captions for e in read_all(source)] == [["number 0"], ["number 1"], ["number 2"]]


def test_members_far_apart_are_read_alike(tmp_path):
    image, text, *_ = make_members(5)
    for between in (0, 10_000, 100_000):
        members = [text, ("000005.big", bytes(between)), image]
        example = TarSource(write_tar(tmp_path / f"{between}.tar", members)).read(0, 0)
        assert (example.image, example.captions) == (image[1], ["number 5"])


def test_a_missing_member_is_counted_and_left_out(tmp_path, caplog):
    members = [part for n in range(4) for part in make_members(n)]
    members = [m for m in members if m[0] not in ("000001.txt", "000003.png")]
    members.append(("README", b"no example"))
    source = TarSource(write_tar(tmp_path / "x.tar", members))
    assert [e.key for e in read_all(source)] == ["000000", "000002"]
    assert source.broken.tolist() == [2]


@pytest.mark.parametrize("cut", [1, 511, 700, 1024, 5000])
def test_a_truncated_shard_gives_the_examples_before_the_cut(tmp_path, shards, cut):
    """The loss is estimated from the size of the whole shards, whose median is 7."""
    path = tmp_path / "train-00002.tar"
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole[: len(whole) - cut])
    source = TarSource(shards, caption="txt", label="cls")
    kept = source.shard_sizes[2]
    assert 0 < kept <= 9 and source.shard_sizes[[0, 1, 3]].tolist() == [7, 5, 6]
    assert source.broken.tolist() == [0, 0, max(1, 6 - kept), 0]
    numbers = [int(e.captions[0].split()[1]) for e in read_all(source)]
    assert numbers == [n for n in range(27) if not 12 + kept <= n < 21]


def test_an_empty_and_a_foreign_shard_count_as_lost(tmp_path, shards):
    (tmp_path / "train-00000.tar").write_bytes(b"")
    (tmp_path / "train-00001.tar").write_bytes(b"<html>" * 500)
    source = TarSource(shards)
    assert source.shard_sizes.tolist() == [0, 0, 9, 6]
    assert source.broken.tolist() == [7, 7, 0, 0]


def test_nothing_usable_says_what_is_there(shards, tmp_path):
    with pytest.raises(ValueError, match="'caption'.*members cls, json, png, txt"):
        TarSource(shards, caption="caption")
    packed = tmp_path / "x.tar"
    packed.write_bytes(b"\x1f\x8b" + bytes(1000))
    with pytest.raises(ValueError, match="gzip.*unpack"):
        TarSource(str(packed))


def broken_text(tmp_path, name, data, **choice):
    members = [("0.png", encode_image(make_pixels(0))), (name, data)]
    source = TarSource(write_tar(tmp_path / "x.tar", members), **choice)
    with pytest.raises(BrokenExample) as error:
        source.read(0, 0)
    return str(error.value)


def test_broken_texts_say_what_is_wrong(tmp_path):
    assert "not UTF-8 (byte 0xff at 2)" in broken_text(tmp_path, "0.txt", b"ab\xff")
    assert "empty" in broken_text(tmp_path, "0.txt", b" \n")
    field = {"caption": "json.captions"}
    assert "not JSON" in broken_text(tmp_path, "0.json", b"{", **field)
    assert "(it has title)" in broken_text(tmp_path, "0.json", b'{"title": "x"}', **field)
    assert "not a text" in broken_text(tmp_path, "0.json", b'{"captions": [1.5]}', **field)
    assert "empty" in broken_text(tmp_path, "0.json", b'{"captions": ["", " "]}', **field)
    label = {"caption": None, "label": "cls"}
    assert "not an integer" in broken_text(tmp_path, "0.cls", b"cat", **label)
    assert "-3" in broken_text(tmp_path, "0.cls", b"-3", **label)


def test_a_kept_index_equals_a_fresh_one(shards, tmp_path, monkeypatch):
    fresh = read_all(TarSource(shards))
    folder = str(tmp_path / "index")
    assert read_all(TarSource(shards, index_dir=folder)) == fresh

    def refuse(*_):
        raise AssertionError("scanned again")

    with monkeypatch.context() as patch:
        patch.setattr(tar_source, "scan_members", refuse)
        assert read_all(TarSource(shards, index_dir=folder)) == fresh
        with pytest.raises(AssertionError, match="again"):  # other members need another index
            TarSource(shards, caption="json.captions", index_dir=folder)
    write_tar(tmp_path / "train-00001.tar", make_members(99))
    assert TarSource(shards, index_dir=folder).read_text(1, 0) == (["number 99"], ())
    for file in (tmp_path / "index").iterdir():
        file.write_bytes(b"PK broken")
    assert TarSource(shards, index_dir=folder).shard_sizes.tolist() == [7, 1, 9, 6]


def test_remote_shards_read_alike(shards, tmp_path):
    memory = fsspec.filesystem("memory")
    for number in range(4):
        name = f"train-{number:05d}.tar"
        memory.pipe(f"/tars/{name}", (tmp_path / name).read_bytes())
    assert read_all(TarSource("memory://tars/train-*.tar")) == read_all(TarSource(shards))


def test_threads_read_the_same_as_one(shards):
    source = TarSource(shards, caption="json.captions")
    places = [(s, i) for s, n in enumerate(source.shard_sizes) for i in range(n)] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda p: source.read(*p), places)) == read_all(source) * 20


def test_the_index_is_small():
    """16 bytes and the key for each example with one text."""
    rows = {f"{n:09d}.{kind}" for n in range(1) for kind in ("jpg", "txt")}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in sorted(rows):
            tar.addfile(tarfile.TarInfo(name))
    index = tar_source._index(file, len(file.getvalue()), {"jpg": 0, "txt": 1}, 2)
    assert index.table.itemsize * index.table.shape[1] == 16
    assert index.keys.dtype == np.dtype("S9")


def test_names_with_several_dots_are_counted_and_told(tmp_path, caplog):
    """An image beside that of its key is no example: it is a mask, or another view."""
    members = [part for n in range(4) for part in make_members(n)[:2]]
    members += [("000000.seg.png", b""), ("x/photo.final.PNG", b""), ("x/photo.final.txt", b"a")]
    with caplog.at_level("WARNING", logger="absl"):
        source = TarSource(write_tar(tmp_path / "x.tar", members))
    assert source.shard_sizes.tolist() == [4] and source.broken.tolist() == [1]
    told = "x/photo.final.PNG has several dots: a key ends at the first dot"
    assert f"1 examples are left out; of the first {told}" in caplog.text
    assert source.faults == (f"x.tar: {told}",)
