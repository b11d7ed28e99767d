"""Data on a hub, by address and by name; the hub is a server on loopback."""

import sys

import layouts
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from samples import make_members, write_tar

from big_align.core.errors import FieldError, UserError
from big_align.data import files, listing
from big_align.data.remote.hub import HubError
from big_align.data.sources.hub_source import HubSource
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.rows_source import RowsSource
from big_align.data.sources.tar_source import TarSource


@pytest.fixture
def folder(tmp_path):
    """Two files of Parquet with several row groups, as the datasets library names them."""
    (tmp_path / "set/data").mkdir(parents=True)
    for number in range(2):
        images = [{"bytes": x, "path": f"{number}-{n}.png"} for n, x in enumerate(layouts.IMAGES)]
        captions = [f"{number}: {caption[0]}" for caption in layouts.CAPTIONS]
        table = pa.table({"image": images, "caption": captions})
        name = f"train-{number:05d}-of-00002.parquet"
        pq.write_table(table, tmp_path / "set/data" / name, row_group_size=8)
    return tmp_path / "set"


def read_all(source):
    places = [(s, n) for s, size in enumerate(source.shard_sizes) for n in range(size)]
    assert places
    return [
        (source.name(*each), source.read_image(*each), source.read_text(*each), source.key(*each))
        for each in places
    ]


def test_an_address_gives_what_the_disk_gives_by_ranges(hub, folder):
    repository = hub.add("owner/set", folder, "dataset", files={"other.txt": b""})
    repository.refs["v1/x"] = first = repository.refs["main"]
    expected = ParquetSource(f"{folder}/data/*.parquet")
    for revision in ("", "@main", "@v1%2Fx", f"@{first}"):
        path = f"hf://datasets/owner/set{revision}/data/train-*.parquet"
        hub.log.clear()
        assert read_all(ParquetSource(path)) == read_all(expected)
        parts = [each.range for each in hub.log if "/cdn/" in each.path]
        assert parts and all(parts)


def test_tars_and_tables_are_read_by_address_too(hub, tmp_path):
    (tmp_path / "set").mkdir()
    members = [member for number in range(40) for member in make_members(number)]
    write_tar(tmp_path / "set/0.tar", [*members, ("x.bin", bytes(2**20))])
    (tmp_path / "set/a.csv").write_text("image,caption\na.png,one\na.png,two\n")
    (tmp_path / "set/a.png").write_bytes(members[0][1])
    hub.add("owner/set", tmp_path / "set", "dataset")
    hub.add("owner/model", files={"vocab.txt": b"[PAD]\n"})
    remote = TarSource("hf://datasets/owner/set/*.tar")
    assert read_all(remote) == read_all(TarSource(f"{tmp_path}/set/*.tar"))
    hub.log.clear()
    remote.read_image(0, 3)  # what is read is the image alone
    (part,) = (each.range for each in hub.log if "/cdn/" in each.path)
    first, last = map(int, part.removeprefix("bytes=").split("-"))
    assert last - first + 1 == len(make_members(3)[0][1])
    table = RowsSource("hf://datasets/owner/set/a.csv")
    local = RowsSource(f"{tmp_path}/set/a.csv")  # only its key, the path, is another
    assert [each[:3] for each in read_all(table)] == [each[:3] for each in read_all(local)]
    assert files.read_text("hf://owner/model/vocab.txt") == "[PAD]\n"


def test_a_name_gives_what_the_disk_gives(hub, folder):
    repository = hub.add("owner/set", folder, "dataset")
    expected = read_all(ParquetSource(f"{folder}/data/*.parquet"))
    source = HubSource("owner/set")
    repository.commit({"data/train.parquet": b"another"})  # what was opened stays
    hub.log.clear()
    assert read_all(source) == expected
    assert all(each.range for each in hub.log if "/cdn/" in each.path)
    hub.add("owner/set", folder, "dataset").refs["v1"] = next(iter(repository.commits))
    assert read_all(HubSource("owner/set", revision="v1")) == expected


def test_what_the_hub_has_converted_is_read_if_nothing_else_can_be(hub, folder):
    content = [path.read_bytes() for path in sorted(folder.rglob("*.parquet"))]
    repository = hub.add("owner/set", kind="dataset", files={"a.csv": b"a", "b.csv": b"b"})
    with pytest.raises(UserError, match="owner/set has no Parquet files; it has a.csv, b.csv: hf:"):
        HubSource("owner/set")
    made = {f"default/train/{number:04d}.parquet": each for number, each in enumerate(content)}
    repository.commit(made | {"default/test/0000.parquet": content[0]}, "refs/convert/parquet")
    pixels = [image for _, image, *_ in read_all(ParquetSource(f"{folder}/data/*.parquet"))]
    assert [image for _, image, *_ in read_all(HubSource("owner/set"))] == pixels
    assert len(read_all(HubSource("owner/set", split="test"))) == len(layouts.IMAGES)
    with pytest.raises(UserError, match="has no Parquet files at main; it has a.csv"):
        HubSource("owner/set", revision="main")  # which alone the hub does not convert


def test_subsets_and_splits_are_those_of_the_card_or_of_the_names(hub, folder):
    one, two = (path.read_bytes() for path in sorted(folder.rglob("*.parquet")))
    card = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: "x/e*.parquet"}
  - {split: held, path: ["x/h.parquet"]}
- config_name: de
  data_files: "x/d.parquet"
---
# text
"""
    names = {"x/e.parquet": one, "x/h.parquet": two, "x/d.parquet": two}
    hub.add("owner/card", kind="dataset", files={"README.md": card.encode(), **names})
    plain = {"en/train-00000-of-00001.parquet": one, "de/test-00000-of-00001.parquet": two}
    hub.add("owner/names", kind="dataset", files={"README.md": b"no card", **plain})
    first, second = ([x[1:] for x in read_all(HubSource("owner/names", *each))] for each in (
        ("train", "en"), ("test", "de")))  # fmt: skip
    for split, subset, expected in (
        ("train", "en", first),
        ("held", "en", second),
        ("train", "de", second),
    ):
        found = HubSource("owner/card", split, subset)
        assert [each[1:] for each in read_all(found)] == expected
    for name, told in (("card", "en, de"), ("names", "de, en")):
        with pytest.raises(FieldError, match=f"owner/{name} has several subsets: {told}; set sub"):
            HubSource(f"owner/{name}")
    with pytest.raises(UserError, match="split = 'test' is unknown; known: train, held"):
        HubSource("owner/card", "test", "en")
    with pytest.raises(UserError, match="subset = 'fr' is unknown; known: en, de"):
        HubSource("owner/card", subset="fr")


def test_what_the_hub_refuses_is_told_in_a_line(hub, folder, monkeypatch):
    hub.add("owner/set", folder, "dataset")
    hub.add("owner/private", folder, "dataset").private = True
    login = "`hf auth login` or the variable HF_TOKEN gives a token$"
    for path, told in {
        "hf://datasets/owner/absent/*.parquet": rf"no such repository \(401\), or a .*{login}",
        "hf://datasets/owner/private/data/a.parquet": rf"no such repository \(401\), or .*{login}",
        "hf://datasets/owner/set@v9/*.parquet": r"the repository has no such revision \(404\)$",
        "hf://datasets/owner/set/none/*.parquet": "no file matches 'hf://datasets/owner/set/none",
        "hf://datasets/owner/set/data/none.parquet": "no file matches",
    }.items():
        with pytest.raises(ValueError, match=told) as raised:
            listing.expand_paths(path)
        assert "\n" not in str(raised.value)
    for name, told in {"absent": "no such repository", "private": "no such repository"}.items():
        with pytest.raises(HubError, match=f"^the data set owner/{name}: .*{told}"):
            HubSource(f"owner/{name}")
    with pytest.raises(UserError, match="path = 'set' must be OWNER/NAME"):
        HubSource("set")
    assert not hub.pauses
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="HF_HUB_OFFLINE is set, but this is read from the hub$"):
        ParquetSource("hf://datasets/owner/other/*.parquet")


def test_limits_faults_and_cut_connections_are_waited_for_and_then_told(hub, folder):
    hub.add("owner/set", folder, "dataset")
    expected = read_all(ParquetSource(f"{folder}/data/*.parquet"))
    hub.fail("/api/datasets", times=2, status=429, headers={"Retry-After": "7"})
    hub.fail("/cdn/", status=503)
    hub.fail("/cdn/", cut_after=5)
    assert read_all(ParquetSource("hf://datasets/owner/set/data/*.parquet")) == expected
    assert hub.pauses[:2] == [7, 7]
    hub.fail("/cdn/", times=10**6, status=503)
    path = "hf://datasets/owner/set/data/train-00000-of-00002.parquet"
    with pytest.raises(OSError, match=rf"^{path}: .* fails now \(503\); try again later \("):
        files.files_of(path).read(path, 0, 9)


def test_without_the_package_a_line_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (
        lambda: files.exists("hf://datasets/owner/set/a.tar"),
        lambda: HubSource("owner/set"),
    ):
        with pytest.raises(UserError, match=r"owner/set.* pip install 'big_align\[hub\]'"):
            call()
