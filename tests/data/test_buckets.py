"""Files in a bucket that fails: right in the end, or an error that names the object and blames it.

The waits between tries are left out.
"""

import logging

import pytest
from samples import make_members, write_tar

from big_align.core.errors import AccessRefused, Unreachable, UserError
from big_align.data import boundary, files, listing
from big_align.data.remote import retries
from big_align.data.shared import storage
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.rows_source import RowsSource
from big_align.data.sources.tar_source import TarSource
from tests import s3_server
from tests.prepare.raw_pairs import write_parquet

PASSING = [kind for kind in s3_server.KINDS if kind != "forbidden"]
FAILING = [kind for kind in PASSING if kind != "slow"]
CONTENT = bytes(range(256)) * 400
PATH = "s3://pairs/folder/a.bin"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.0))


def write(path=PATH, content=CONTENT):
    with storage.open_whole(path) as file:
        file.write(content)


READS = {
    "exists": files.exists,
    "stamp": lambda path: files.files_of(path).stamp(path)[0],
    "read": lambda path: files.files_of(path).read(path, 1000, 70),
    "read_all": lambda path: files.files_of(path).read_all(path),
    "open": lambda path: files.files_of(path).open(path).read(),
    "glob": lambda path: listing.expand_paths(path.replace("a.", "*.")),
    "list": lambda path: storage.list_names(path.rpartition("/")[0]),
}


@pytest.mark.slow_repeats
@pytest.mark.parametrize("kind", PASSING)
def test_a_fault_that_passes_changes_nothing_and_is_logged(bucket, kind, caplog):
    bucket.slowness = 0.02
    write()
    right = {name: read(PATH) for name, read in READS.items()}
    assert right["read_all"] == right["open"] == CONTENT and right["glob"] == [PATH]
    for name, read in READS.items():
        # aiohttp asks twice where a connection was kept
        bucket.fail(" /pairs", kind, times=2)
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert read(PATH) == right[name], name
        refused = kind in s3_server.REFUSALS
        assert len([r for r in caplog.records if "try 2 follows in" in r.message]) >= refused, name
        bucket.heal()
    bucket.fail("PUT", kind, times=2)
    write("s3://pairs/other", CONTENT[:5000])
    assert bucket.read("other") == CONTENT[:5000]


@pytest.mark.slow_repeats
@pytest.mark.parametrize("kind", FAILING)
def test_a_fault_that_stays_is_told_in_a_line(bucket, kind):
    write()
    bucket.fail("", kind, times=10**6)
    for name, read in READS.items():
        if kind == "cut" and name in ("exists", "stamp"):  # an answer without a body
            continue
        with pytest.raises(Unreachable, match=r"^s3://pairs/folder.* \(tried 3 times in \d+ s\)$"):
            read(PATH)
    told = r"^s3://pairs/b cannot be written: .* \(tried 3 times in \d+ s\)$"
    with pytest.raises(Unreachable, match=told):
        write("s3://pairs/b")
    assert kind == "lose" or bucket.read("b") is None


def test_a_request_is_tried_as_often_as_the_log_says(bucket):
    """The tries of s3fs, of botocore and of this package would multiply."""
    write()
    bucket.fail("GET", "slow_down", times=10**6)
    bucket.log.clear()
    with pytest.raises(Unreachable, match="tried 3 times"):
        files.files_of(PATH).read(PATH, 0, 9)
    assert len(bucket.log) == 3


def test_what_is_refused_is_asked_for_once(bucket):
    write()
    bucket.fail("GET", "forbidden", times=10**6)
    bucket.log.clear()
    with pytest.raises(AccessRefused, match=f"^{PATH}: the server answers 403 AccessDenied"):
        files.files_of(PATH).read(PATH, 0, 9)
    assert len(bucket.log) == 1


def test_without_credentials_a_line_says_so_at_once(bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(Unreachable, match=f"^{PATH}: .*credentials$"):
        files.files_of(PATH).read_all(PATH)


def test_what_is_not_there_is_not_there(bucket):
    write()
    other, end = "s3://pairs/none", files.files_of(PATH).read(PATH, len(CONTENT), 9)
    assert not files.exists(other) and storage.read_bytes(other) is None and end == b""
    assert storage.list_names("s3://pairs/no/folder") == []
    with pytest.raises(FileNotFoundError, match="s3://bucket/x: there is no such bucket"):
        files.files_of("s3://bucket/x").read_all("s3://bucket/x")
    with pytest.raises(UserError, match="s3://bucket/x cannot be written: there is no such bucket"):
        write("s3://bucket/x")
    storage.remove(other)


def test_a_listing_is_not_older_than_what_was_written_since(bucket):
    """A listing that another thread has asked for may lack what was written meanwhile."""
    write()
    assert storage.list_names("s3://pairs/folder") == ["a.bin"]
    s3_server.make_client(bucket).pipe_file("pairs/folder/b.bin", b"b")
    assert files.exists("s3://pairs/folder/b.bin")
    assert storage.read_bytes("s3://pairs/folder/b.bin") == b"b"
    assert storage.list_names("s3://pairs/folder") == ["a.bin", "b.bin"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["PUT .*partNumber=2", "POST .*uploadId="])
def test_an_object_of_several_parts_is_whole_or_absent(bucket, fault):
    """Those of 100 MiB and more; a part that is lost is sent again with the others."""
    content = CONTENT * 1040
    bucket.fail(fault, "close", times=10**6)
    with pytest.raises(Unreachable, match="cannot be written"):
        write(content=content)
    assert bucket.read("folder/a.bin") is None and not bucket.uploads()
    bucket.heal()
    bucket.fail(fault, "cut", times=2)
    write(content=content)
    assert bucket.read("folder/a.bin") == content and not bucket.uploads()


def read_source(source):
    places = [(s, n) for s, size in enumerate(source.shard_sizes) for n in range(size)]
    found = [boundary.read_example(source, *place) for place in places]
    return [(example.image, example.captions) for example in found]


def make_tar(folder):
    for shard in range(2):
        members = [m for n in range(4 * shard, 4 * shard + 4) for m in make_members(n)]
        write_tar(folder / f"x-{shard}.tar", members)
    return lambda where: TarSource(f"{where}/x-*.tar"), "x-1.tar"


def make_parquet(folder):
    write_parquet(folder, [(make_members(n)[0][1], f"number {n}") for n in range(8)], 2, 2)
    return lambda where: ParquetSource(f"{where}/raw-*.parquet", image="jpg"), "raw-00001.parquet"


def make_table(folder):
    lines = ["image,caption"]
    for number in range(6):
        (folder / f"{number}.png").write_bytes(make_members(number)[0][1])
        lines.append(f"{number}.png,number {number}")
    (folder / "x.csv").write_text("\n".join(lines))
    return lambda where: RowsSource(f"{where}/x.csv"), "x.csv"


@pytest.mark.slow_repeats
@pytest.mark.parametrize("make", [make_table, make_parquet, make_tar])
def test_sources_read_alike_from_a_bucket_and_blame_no_example_for_it(bucket, make, tmp_path):
    open_at, last = make(tmp_path)
    s3_server.make_client(bucket).put(f"{tmp_path}/", "pairs/data/", recursive=True)
    expected = read_source(open_at(tmp_path))
    bucket.slowness = 0.02
    bucket.plan(seed=0, rate=0.2, kinds=PASSING)
    source = open_at("s3://pairs/data")
    assert read_source(source) == expected and bucket.taken
    bucket.heal()
    fresh = open_at("s3://pairs/data")
    bucket.fail("GET", "slow_down", times=10**6)
    for shard in range(len(fresh.shard_sizes)):
        with pytest.raises(Unreachable, match=r"^s3://pairs/data/.*SlowDown.* \(tried 3 times"):
            boundary.read_example(fresh, shard, 0)
    bucket.heal()
    bucket.fail(f"GET .*/{last}", "slow_down", times=10**6)
    with pytest.raises(UserError, match=rf"s3://pairs/data/{last}: .*SlowDown.* \(tried 3 times"):
        open_at("s3://pairs/data")
    bucket.heal()
    assert read_source(fresh) == expected  # nothing of it was kept
