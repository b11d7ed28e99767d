"""Labels of two sources mean the same classes after they are joined, however each numbers them."""

import io
import itertools
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from big_align.core.errors import UserError
from big_align.data.derived.relabeled_source import join_labels, join_sources
from big_align.data.labels.classes import ClassList
from big_align.data.labels.label_names import match_names, unite_names
from big_align.data.sources.array_source import ArraySource
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.tar_source import TarSource
from tests.data import layouts

CLASSES = ClassList(
    ("hot dog", "crane", "crane", "polish", "Polish"), ("", "bird", "machine", "", ""),
    ("n1", "n2", "n3", "n4", "n5"),
)  # fmt: skip


def make(label, names):
    images = np.zeros((len(label), 2, 2, 3), np.uint8)
    return ArraySource(images, [[] for _ in label], np.array(label, np.int32), class_names=names)


def read_labels(source):
    sizes = enumerate(source.shard_sizes.tolist())
    return [source.read(shard, n).labels for shard, size in sizes for n in range(size)]


def read_names(source):
    return [tuple(source.class_names[label] for label in row) for row in read_labels(source)]


def test_each_name_finds_its_class_in_any_order_and_without_some():
    ids = ["n1", "n2", "n3", "n4", "n5"]
    for count in range(1, 6):
        for some in itertools.permutations(range(5), count):
            found = match_names([ids[n] for n in some], CLASSES, "here")
            assert found.tolist() == list(some)
    names = ["Hot-Dog", "n3", "polish", "Polish"]
    assert match_names(names, CLASSES, "here").tolist() == [0, 2, 3, 4]
    # All in order: then two of one name are told apart by their places.
    assert match_names(CLASSES.names, CLASSES, "here").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["hot dog", "crane"], "here: label 1 is 'crane', the name of 2 classes of a list, 1, 2"),
        (["POLISH"], "label 0 is 'POLISH', the name of 2 classes"),
        (
            ["hot dgo", "cat"],
            r"'hot dgo', which is no class of a list \(did you mean 'hot dog'\?\)",
        ),
    ],
)
def test_a_name_of_no_class_or_of_several_is_an_error(names, message):
    with pytest.raises(UserError, match=message):
        match_names(names, CLASSES, "here", "a list")


def test_joined_labels_are_those_of_the_names(caplog):
    classes = ClassList.from_names(["ant", "bee", "cow", "dog"])
    label = [0, 1, 2, 0, 1]
    for names in itertools.permutations(classes.names, 3):
        source = make(label, names)
        joined = join_labels(source, classes, "test")
        wanted = [(names[n],) for n in label]
        assert [(classes.names[x],) for (x,) in read_labels(joined)] == wanted
        assert joined.read_text(0, 0)[1] == (classes.names.index(names[0]),)
        if joined is not source:
            assert read_names(joined) == wanted
            assert join_labels(joined, classes, "test") is joined
        missing = (set(classes.names) - set(names)).pop()
        assert f"has no class {missing!r}; 1 of the 4 classes" in caplog.messages[-1]
        other = join_sources(source, make([0], tuple(reversed(classes.names))), "one", "two")
        assert [classes.names[3 - x] for (x,) in read_labels(other)] == [n for (n,) in wanted]
    numbers = make(label, None)
    assert join_labels(numbers, classes, "test") is numbers
    assert join_sources(numbers, source, "one", "two") is numbers
    assert "two names its classes and one only numbers them" in caplog.messages[-1]


def write_parquet(path, names, label):
    """Writes what the datasets library does: numbers, and their names in the metadata."""
    table = pa.table({"image": layouts.IMAGES[: len(label)], "label": label})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        noted = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(noted)
    pq.write_table(table, path)


def test_parquet_files_number_their_classes_each_for_itself(tmp_path, caplog):
    write_parquet(tmp_path / "a.parquet", ["cat", "dog"], [0, 1, 1])
    write_parquet(tmp_path / "b.parquet", ["dog", "cat"], [0, 1, 1])
    write_parquet(tmp_path / "c.parquet", ["emu", "cat"], [0, 1, 1])
    source = ParquetSource(str(tmp_path / "*.parquet"))
    assert source.class_names == ("cat", "dog", "emu")
    names = [name for (name,) in read_names(source)]
    assert names == ["cat", "dog", "dog", "dog", "cat", "cat", "emu", "cat", "cat"]
    assert sum("number their classes differently" in told for told in caplog.messages) == 1
    write_parquet(tmp_path / "d.parquet", None, [0, 1, 1])
    with pytest.raises(UserError, match="a.parquet names its classes and .*d.parquet does not"):
        ParquetSource(str(tmp_path / "*.parquet"))
    assert ParquetSource(str(tmp_path / "*.parquet"), label="").class_names is None


def write_shard(folder, names, label):
    folder.mkdir()
    if names:
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    with tarfile.open(folder / "0.tar", "w") as shard:
        for n, value in enumerate(label):
            for ending, data in (("jpg", layouts.IMAGES[n]), ("cls", str(value).encode())):
                member = tarfile.TarInfo(f"{n}.{ending}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def test_shards_have_the_names_of_the_file_beside_them(tmp_path):
    write_shard(tmp_path / "a", ["cat", "dog"], [0, 1])
    write_shard(tmp_path / "b", ["emu", "dog", "cat"], [0, 1, 2])
    paths = f"{tmp_path}/a/0.tar,{tmp_path}/b/0.tar"
    source = TarSource(paths, caption="", label="cls")
    assert [name for (name,) in read_names(source)] == ["cat", "dog", "emu", "dog", "cat"]
    assert [source.read_text(1, n)[1] for n in range(3)] == [(2,), (1,), (0,)]
    write_shard(tmp_path / "c", None, [0])
    with pytest.raises(UserError, match="a names its classes and .*c does not"):
        TarSource(f"{paths},{tmp_path}/c/0.tar", caption="", label="cls")
    assert TarSource(f"{tmp_path}/c/0.tar", caption="", label="cls").class_names is None


def test_classes_of_one_name_cannot_be_joined_with_those_of_another_file():
    twice = ("crane", "crane")
    assert unite_names([twice, twice, ()], ["a", "b", "c"]).names == twice
    with pytest.raises(UserError, match="a and b .* two classes are called 'crane'"):
        unite_names([twice, ("crane",)], ["a", "b"])
