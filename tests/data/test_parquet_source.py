"""Parquet is read a row group at a time, once for all threads, within a budget."""

import concurrent.futures
import json
import pickle

import layouts
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_align.core.errors import UserError
from big_align.data import row_groups
from big_align.data.examples import BrokenExample, WrongLabel
from big_align.data.row_groups import Place, RowGroups
from big_align.data.sources.csv_source import CsvSource
from big_align.data.sources.parquet_source import ParquetSource


def write(path, rows_a_group=4, **columns) -> str:
    schema = columns.pop("schema", None)
    table = pa.table({"image": layouts.IMAGES, "caption": layouts.CAPTIONS} | columns, schema)
    pq.write_table(table, path, row_group_size=rows_a_group)
    return str(path)


class CountedGroups(RowGroups):
    """Notes what is decoded."""

    def __init__(self, *args):
        super().__init__(*args)
        self.loads = []

    def _load(self, place, names):
        self.loads.append((place, names))
        return super()._load(place, names)


def test_threads_that_want_a_row_group_wait_for_one_read(tmp_path):
    groups = CountedGroups([write(tmp_path / "x.parquet")], 2**20)
    wanted = [n for n in range(layouts.COUNT) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        read = lambda n: groups.read(Place(0, n // 4), ("image",), n % 4)  # noqa: E731
        assert list(pool.map(read, wanted)) == [[layouts.IMAGES[n]] for n in wanted]
    assert sorted(groups.loads) == [(Place(0, n), ("image",)) for n in range(6)]


def test_the_row_group_not_used_for_longest_goes_first(tmp_path):
    path = write(tmp_path / "x.parquet")
    size = pq.ParquetFile(path).read_row_group(0, columns=["image"]).nbytes
    groups = CountedGroups([path], 2 * size + size // 2)
    for group in (0, 1, 0, 2, 0, 1):
        groups.read(Place(0, group), ("image",), 0)
    assert [place.group for place, _ in groups.loads] == [0, 1, 2, 1]


def test_a_row_group_above_the_budget_is_read_all_the_same(tmp_path, caplog):
    groups = CountedGroups([write(tmp_path / "x.parquet")], 10)
    with caplog.at_level("WARNING", logger="absl"):
        for n in range(layouts.COUNT):
            assert groups.read(Place(0, n // 4), ("image",), n % 4) == [layouts.IMAGES[n]]
    assert len(groups.loads) == 6 and caplog.text.count("more than cache_megabytes") == 1


def test_a_process_that_gets_row_groups_reads_its_own(tmp_path):
    groups = RowGroups([write(tmp_path / "x.parquet")], 2**20)
    first = groups.read(Place(0, 1), ("image", "caption"), 2)
    assert pickle.loads(pickle.dumps(groups)).read(Place(0, 1), ("image", "caption"), 2) == first


def test_text_is_read_without_images(tmp_path):
    source = ParquetSource(write(tmp_path / "x.parquet"))
    source._groups = CountedGroups([str(tmp_path / "x.parquet")], 2**20)
    assert [source.read_text(n // 4, n % 4)[0] for n in range(layouts.COUNT)] == layouts.CAPTIONS
    assert {names for _, names in source._groups.loads} == {("caption",)}


def test_rows_without_an_image_are_passed_over_and_kept_in_the_index(tmp_path):
    images = [image if n % 3 else None for n, image in enumerate(layouts.IMAGES)]
    path = write(tmp_path / "x.parquet", image=pa.array(images, pa.binary()))
    for _ in range(2):
        source = ParquetSource(path, index_dir=str(tmp_path / "index"))
        assert source.shard_sizes.tolist() == [2, 3, 3, 2, 3, 3] and source.broken.sum() == 0
        assert [source.name(0, n) for n in range(2)] == ["x.parquet: row 1", "x.parquet: row 2"]
        assert source.read(1, 1).image == layouts.IMAGES[5]
    with pytest.raises(UserError, match="no row of .* has an image in the column 'image'"):
        ParquetSource(write(tmp_path / "y.parquet", image=pa.nulls(layouts.COUNT, pa.binary())))


def test_classes_that_the_library_datasets_names_are_known(tmp_path):
    features = {"label": {"names": ["ant", "bee"], "_type": "ClassLabel"}}
    label = [n % 2 for n in range(layouts.COUNT)]
    table = pa.table({"image": layouts.IMAGES, "label": label})
    noted = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(noted), tmp_path / "x.parquet")
    source = ParquetSource(str(tmp_path / "x.parquet"))
    assert source.class_names == ("ant", "bee")
    assert [source.read(0, n).label for n in range(4)] == [0, 1, 0, 1]


def test_torn_files_are_named(tmp_path):
    whole = write(tmp_path / "a.parquet")
    torn = tmp_path / "b.parquet"
    torn.write_bytes((tmp_path / "a.parquet").read_bytes()[:-30])
    with pytest.raises(UserError, match="b.parquet is no whole Parquet file"):
        ParquetSource(str(torn))
    source = ParquetSource([str(torn), whole])
    assert source.shard_sizes.tolist() == [0, *[4] * 6]
    assert source.broken.tolist() == [layouts.COUNT, *[0] * 6]
    assert source.read(1, 0).image == layouts.IMAGES[0]
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[4:2000] = bytes(1996)  # the pages of the first row group
    (tmp_path / "c.parquet").write_bytes(data)
    source = ParquetSource(str(tmp_path / "c.parquet"))
    with pytest.raises(BrokenExample, match="row group 0 of .*c.parquet cannot be read"):
        source.read(0, 0)
    assert source.read(5, 3).image == layouts.IMAGES[23]


def test_a_page_that_does_not_have_its_checksum_is_refused(tmp_path):
    table = pa.table({"image": layouts.IMAGES, "caption": ["a dog"] * layouts.COUNT})
    options = {"compression": "none", "row_group_size": 12, "write_page_checksum": True}
    pq.write_table(table, tmp_path / "x.parquet", **options)
    data = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(data.replace(b"a dog", b"a cow", 1))
    source = ParquetSource(str(tmp_path / "x.parquet"))
    with pytest.raises(BrokenExample, match="row group 0 of .*x.parquet .*CRC"):
        source.read_text(0, 3)
    assert source.read_text(1, 3)[0] == ["a dog"]


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_row_group_that_unpacks_to_far_more_than_the_file_is_refused_once(
    tmp_path, monkeypatch, dictionary
):
    monkeypatch.setattr(row_groups, "UNPACKED_MIN", 2**20)
    images = [bytes(2**16)] * layouts.COUNT
    options = {"compression": "zstd", "use_dictionary": dictionary, "row_group_size": 20}
    pq.write_table(pa.table({"image": images, "caption": layouts.CAPTIONS}), tmp_path / "x.parquet",
                   **options)  # fmt: skip
    groups = CountedGroups([str(tmp_path / "x.parquet")], 2**20)
    for row in range(20):
        with pytest.raises(BrokenExample, match="row group 0 .* unpack to .* at most 1048576"):
            groups.read(Place(0, 0), ("image",), row)
    assert groups.read(Place(0, 1), ("image",), 3) == images[:1]
    assert groups.read(Place(0, 0), ("caption",), 19) == [layouts.CAPTIONS[19]]
    assert groups.loads.count((Place(0, 0), ("image",))) == 1


def test_the_key_is_that_of_the_file_or_the_path_of_the_image_or_the_row(tmp_path):
    names = [f"{number:05d}" for number in range(layouts.COUNT)]
    path = write(tmp_path / "x.parquet", key=[None, "", *names[2:]])
    source = ParquetSource(path)
    assert [source.key(0, n) for n in range(4)] == [
        "row 0 of x.parquet", "row 1 of x.parquet", "00002", "00003",
    ]  # fmt: skip
    assert source.read(0, 2).key == "00002"
    images = [{"bytes": data, "path": f"a/{n}"} for n, data in enumerate(layouts.IMAGES)]
    source = ParquetSource(write(tmp_path / "x.parquet", image=images), caption="")
    assert [source.key(0, n) for n in range(2)] == ["a/0", "a/1"]
    path = write(tmp_path / "x.parquet", image=images, name=names)
    assert ParquetSource(path, key="name").key(1, 2) == "00006"
    assert ParquetSource(path, key="image.path").key(1, 2) == "a/6"
    with pytest.raises(UserError, match="no column 'nme'; .* set key=COLUMN"):
        ParquetSource(path, key="nme")
    numbers = list(range(layouts.COUNT))
    for columns, key in (({}, None), ({"key": numbers}, None), ({"key": names}, "")):
        source = ParquetSource(write(tmp_path / "x.parquet", **columns), key=key)
        assert source.key(1, 2) == source.name(1, 2) == "x.parquet: row 6"
    for values in (numbers, list(map(float, numbers)), list(map(str, numbers))):
        path = write(tmp_path / "x.parquet", id=values)
        assert ParquetSource(path, key="id").key(1, 2) == "6"  # as a text has it


def test_values_of_other_kinds_are_broken_examples(tmp_path):
    captions = pa.array([None] * layouts.COUNT, pa.string())
    source = ParquetSource(write(tmp_path / "x.parquet", caption=captions))
    with pytest.raises(BrokenExample, match="the caption is null, not a text"):
        source.read(0, 0)
    with pytest.raises(WrongLabel, match="the label is"):
        ParquetSource(write(tmp_path / "x.parquet", label=["cat"] * layouts.COUNT), caption="",
                      label="label").read(0, 0)  # fmt: skip


def test_a_path_of_an_image_is_one_from_here_or_from_the_folder_of_the_table(tmp_path, monkeypatch):
    (tmp_path / "set" / "images").mkdir(parents=True)
    (tmp_path / "here.png").write_bytes(layouts.IMAGES[0])
    (tmp_path / "set" / "images" / "1.png").write_bytes(layouts.IMAGES[1])
    names = ["here.png", "images/1.png", str(tmp_path / "here.png"), "images/gone.png"]
    names += ["here.png"] * (layouts.COUNT - len(names))
    images = [{"bytes": None, "path": name} for name in names]
    path = write(tmp_path / "set" / "x.parquet", image=images)
    monkeypatch.chdir(tmp_path)
    source = ParquetSource(path)
    assert [source.read_image(0, n) for n in range(3)] == [layouts.IMAGES[n] for n in (0, 1, 0)]
    with pytest.raises(BrokenExample, match="'images/gone.png' cannot be read"):
        source.read_image(0, 3)


def test_no_image_is_fetched_from_an_address_as_in_a_csv(tmp_path):
    for address in ("http://127.0.0.1:9/x.png", "simplecache::HTTPS://127.0.0.1:9/x.png"):
        images = [{"bytes": None, "path": address}] * layouts.COUNT
        source = ParquetSource(write(tmp_path / "x.parquet", image=images))
        with pytest.raises(BrokenExample, match="127.0.0.1:9/x.png' is an address, not a file"):
            source.read_image(0, 0)
        (tmp_path / "x.csv").write_text(f"image,caption\n{address},a dog\n")
        with pytest.raises(UserError, match="the image is an address"):
            CsvSource(str(tmp_path / "x.csv"))
