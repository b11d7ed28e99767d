"""Every store finds the same rows, however they came there."""

import datetime
import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

WHY = "an index in LanceDB needs pip install -e '.[lancedb]'"
lancedb = pytest.importorskip("lancedb", reason=WHY)
lance = pytest.importorskip("lance", reason=WHY)

from big_align.core.errors import UserError  # noqa: E402
from big_align.use.search.metadata import empty_metadata  # noqa: E402
from big_align.use.search.stores import store  # noqa: E402
from big_align.use.search.stores.on_lance import lance_search, lance_store, lance_writer  # noqa: E402
from big_align.use.search.stores.store import (  # noqa: E402
    CAPTIONS,
    IMAGES,
    IndexEntry,
    SearchGoal,
    open_store,
    open_writer,
)

COUNT, DIM = 300, 24
SETTINGS = {
    "model": "m", "weights": "w", "architecture": "a", "transform": None, "dtype": "float16",
    "thumbnail": 8,
}  # fmt: skip
ZONED = pa.timestamp("us", "Asia/Tokyo")


def draw(count, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, DIM))
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


VECTORS = dict(enumerate(draw(1000)))
TEXT_VECTORS = {f"text {n}": vector for n, vector in enumerate(draw(200, 1))}


def make_entry(number, version=0):
    captions = [f"text {n}" for n in {number % 90, 7 * number % 200}]
    return IndexEntry(f"a/{number}.jpg", str(number), "s", number, f"v{version}", captions, None)


def make_metadata(numbers):
    def pick(*values, kind=None):
        return pa.array([values[number % len(values)] for number in numbers], kind)

    noon = datetime.datetime(2020, 5, 1, 12, tzinfo=datetime.UTC)
    return pa.table(
        {
            "year": pick(1999, 2004, None, 2020, -3),
            "id of it": pick(2**53, 2**53 + 1, None, 5, kind=pa.int64()),
            "rating.of it": pick(4.7, float("nan"), None, float("inf"), 0.1, -0.0),
            "small": pick(*map(np.float32, (4.7, 4.8, 0.1, np.nan)), kind=pa.float32()),
            "Ort 'x'": pick("Bern", "it's", None, "", "Zürich, CH", "bern", "\\"),
            "night": pick(True, None, False),
            "day": pick(datetime.date(2020, 1, 1), None, datetime.date(2021, 2, 3)),
            "taken": pick(noon, None, noon + datetime.timedelta(hours=1), kind=ZONED),
            "at": pick(datetime.time(9), datetime.time(10, 30), None, kind=pa.time32("s")),
            "none": pick(None),
        }
    )


VALUES = {
    "year": ("2004", "2003.5", "-3", "1e30", f"{10**30}", "-inf"),
    "id of it": (f"{2**53}", f"{2**53 + 1}", "5.5"),
    "rating.of it": ("4.7", "0", "-0.0", "inf", "1e-3"),
    "small": ("4.7", "0.1", "9"),
    "Ort 'x'": ("Bern", "it's", "", "Zürich, CH", "\\", "a' OR 'a'='a", "%"),
    "night": ("true", "False"),
    "day": ("2020-01-01", "2020-12-31"),
    "taken": ("2020-05-01 21:00", "2020-05-01T12:30:00Z", "2020-05-01"),
    "at": ("09:00:00", "10:30"),
}
CONDITIONS = [
    f"{column}{operator}{value}"
    for column, values in VALUES.items()
    for value in values
    for operator in ("=", "!=", "<", "<=", ">", ">=")
]


def fill(address, entries, metadata=None, exact=True, gone=(), block=None, recall=0.9, stop=None):
    """Brings an index up to date with these images, as a builder does."""
    numbers = [entry.number for entry in entries]
    metadata = make_metadata(numbers) if metadata is None else metadata.slice(0, len(entries))
    queries = draw(50, 2)
    goal = SearchGoal(
        recall, "exact" if exact else "ivf_rq",
        lambda sample, kind: {"images": (queries, np.full(len(queries), -1))},
    )  # fmt: skip
    embedded = []
    with open_writer(address, SETTINGS, {}, lambda: DIM) as writer:
        size = (block or writer.block or len(entries)) if writer.block else len(entries)
        for first in range(0, len(entries), size):
            part = entries[first : first + size]
            known = writer.find_images([entry.name for entry in part])
            new = [entry for entry in part if not known(entry.name, entry.signature)]
            embedded += new
            if new:
                vectors = np.stack([VECTORS[e.number + 500 * (e.signature > "v0")] for e in new])
                writer.add_images(new, vectors, [entry.name.encode() for entry in new])
            texts = list(dict.fromkeys(text for entry in part for text in entry.captions))
            missing = [text for text in texts if text not in writer.find_texts(texts)]
            if missing:
                writer.add_texts(missing, np.stack([TEXT_VECTORS[text] for text in missing]))
            writer.end_block(part, metadata.slice(first, size), True)
            if stop:
                stop(first)
        writer.finish(list(gone), goal)
    return embedded


def read(address):
    """Everything that an index holds, by the names of images; of some, their pixels too."""
    opened = open_store(address)
    names = sorted(opened.list_names(10_000))
    rows = [opened.find_image(name) for name in names]
    stored = dict(zip(names, opened.read_images(rows), strict=True))
    pixels = [(opened.read_thumbnail(row), opened.read_vector(row).tolist()) for row in rows[::9]]
    return {name: (image[:2], str(image.metadata)) for name, image in stored.items()}, pixels


ENTRIES = [make_entry(number) for number in range(COUNT)]
SOME = ENTRIES[:40]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    found = f"{folder}/ours", f"lancedb:{folder}/lance"
    for address in found:
        fill(address, ENTRIES, block=64)
    return found


@pytest.fixture(scope="module")
def both(addresses):
    return [open_store(address) for address in addresses]


def test_both_hold_the_same(addresses):
    first, second = map(read, addresses)
    assert first == second and len(first[0]) == COUNT


def find_names(opened, kind, queries, k, filters=()):
    """What is found, by names and texts, with the scores."""
    numbers, scores = opened.search(kind, queries, k, filters)
    if kind == IMAGES:
        names = [[image.name for image in opened.read_images(row.tolist())] for row in numbers]
    else:
        found = [opened.read_captions(row.tolist(), filters) for row in numbers]
        names = [
            [(text, opened.read_images([row])[0].name) for row, text in each] for each in found
        ]
    return names, scores


@pytest.mark.parametrize("kind", [IMAGES, pytest.param(CAPTIONS, marks=pytest.mark.slow)])
def test_both_find_the_same_with_the_same_scores(both, kind):
    for filters in ((), ("year>=2000",), ("night=true", "day<2021-01-01"), ("year=1",)):
        for k in (1, 10, 40):
            (ours, cosines), (theirs, scores) = (
                find_names(opened, kind, draw(3, 5), k, filters) for opened in both
            )
            assert ours == theirs, (filters, k)
            np.testing.assert_allclose(cosines, scores, atol=1e-6)


def test_both_find_the_same_rows_for_every_condition(both):
    """As many rows as there are are asked for, so that one that is missed is seen."""
    query, wrong = draw(1, 6), []
    for condition in CONDITIONS:
        found = []
        for opened in both:
            try:
                numbers, _ = opened.search(IMAGES, query, COUNT, [condition])
                found.append(set(numbers[0].tolist()) - {-1})
            except UserError as error:
                found.append(str(error))
        if found[0] != found[1]:
            wrong.append((condition, *found))
    assert wrong == []


def test_conditions_are_the_engines_sql_and_nothing_else(both):
    for condition in ("Ort 'x'=' OR 1=1", "m0=3", "id=3", "nothing=3", "year"):
        ours, theirs = (
            pytest.raises(UserError, opened.search, IMAGES, draw(1), 3, [condition])
            if "1=1" not in condition
            else opened.search(IMAGES, draw(1), 3, [condition])[0].tolist()
            for opened in both
        )
        assert str(getattr(ours, "value", ours)) == str(getattr(theirs, "value", theirs))


CHANGED = [make_entry(n, version=n % 10 == 3) for n in range(40, COUNT) if n % 7]


@pytest.mark.slow
def test_an_update_equals_a_fresh_build(addresses, tmp_path):
    """Images are new, changed or gone; texts, columns and the types of columns are others."""
    metadata = make_metadata([entry.number for entry in CHANGED])
    fewer = metadata.drop_columns(["day", "night"])
    other = fewer.set_column(0, "year", fewer["year"].cast(pa.string()))
    found = {}
    for name in ("ours", "lancedb:lance"):
        scheme, _, place = name.rpartition(":")
        address = f"{scheme}:" * bool(scheme) + f"{tmp_path}/{place}"
        fill(address, ENTRIES[:200], block=64)
        gone = [entry.name for entry in ENTRIES[:200] if entry.number < 40 or not entry.number % 7]
        embedded = fill(address, CHANGED, other, gone=gone, block=50)
        known = {(entry.name, entry.signature) for entry in ENTRIES[:200]}
        new = [entry for entry in CHANGED if (entry.name, entry.signature) not in known]
        assert embedded == new
        fill(f"{address}_whole", CHANGED, other)
        found[name] = read(address)
        assert found[name] == read(f"{address}_whole")
        assert fill(address, CHANGED, other) == []
    assert found["ours"] == found["lancedb:lance"]


@pytest.mark.slow
def test_a_run_that_ends_anywhere_is_continued(tmp_path, monkeypatch):
    """Each run writes one thing more than the one before: no place is left out."""
    address = f"lancedb:{tmp_path}/killed"
    fill(address, ENTRIES[:30])
    writes, stopped = itertools.count(), 0

    def interrupting(method):
        def call(self, *given, **more):
            if next(writes) == stopped:
                raise KeyboardInterrupt
            return method(self, *given, **more)

        return call

    table = type(open_store(address)._tables[IMAGES])
    for name in ("add", "delete", "add_columns", "drop_columns", "optimize"):
        monkeypatch.setattr(table, name, interrupting(getattr(table, name)))
    gone = [entry.name for entry in ENTRIES[:30] if entry.number % 7 == 0]
    entries = [make_entry(n, version=n % 10 == 3) for n in range(40) if n % 7]
    metadata = make_metadata(range(len(entries))).drop_columns(["day", "year"])
    metadata = metadata.append_column("new", pa.array(range(len(entries))))
    while stopped < 60:
        try:
            fill(address, entries, metadata, gone=gone, block=16)
        except KeyboardInterrupt:
            writes, stopped = itertools.count(), stopped + 1
        else:
            break
    assert 5 < stopped < 60
    monkeypatch.undo()
    fill(f"{address}_whole", entries, metadata)
    assert read(address) == read(f"{address}_whole")
    assert open_store(address).info["search"] == open_store(f"{address}_whole").info["search"]


KILLED = """
import os, signal, sys
from tests.use.search.test_stores import ENTRIES, fill
fill(sys.argv[1], ENTRIES, block=64, stop=lambda first: first == 128 and os.kill(os.getpid(), 9))
"""


@pytest.mark.slow
def test_a_killed_process_is_continued(tmp_path):
    address = f"lancedb:{tmp_path}/killed"
    assert subprocess.run([sys.executable, "-c", KILLED, address], check=False).returncode == -9
    with pytest.raises(UserError, match="is not finished: the command that builds it continues"):
        open_store(address)
    assert len(fill(address, ENTRIES, block=64)) == COUNT - 192
    fill(f"{address}_whole", ENTRIES)
    assert read(address) == read(f"{address}_whole")


QUIET = """
import sys
from big_align.use.search.stores.store import load_module
load_module("lancedb:index")  # as a command does, before anything else imports the engine
from big_align.use.search.stores.on_lance import lance_search
from tests.use.search.test_stores import ENTRIES, fill, make_entry
lance_search.SMALLEST = 2
fill(sys.argv[1], ENTRIES, exact=False, recall=0.1)
fill(sys.argv[1], [make_entry(0, version=1), *ENTRIES[1:]], exact=False, recall=0.1)
"""


@pytest.mark.slow
def test_the_engine_does_not_warn_of_partitions_without_rows(tmp_path):
    command = [sys.executable, "-c", QUIET, f"lancedb:{tmp_path}/index"]
    assert "WARN" not in subprocess.run(command, check=True, capture_output=True, text=True).stderr


def test_of_two_writers_the_later_goes_on(tmp_path):
    address = f"lancedb:{tmp_path}/index"
    second = []

    def begin_another(first):
        if not second:
            second.append(fill(address, SOME, block=10))

    with pytest.raises(UserError, match="another process is writing this index; it goes on"):
        fill(address, SOME, block=10, stop=begin_another)
    assert len(second[0]) == 30  # it goes on from what the other has written
    fill(f"{address}_whole", SOME)
    assert read(address) == read(f"{address}_whole")
    assert open_store(address).count(IMAGES) == 40


def test_rows_that_two_processes_wrote_are_mended(tmp_path):
    address = f"lancedb:{tmp_path}/index"
    fill(address, ENTRIES[:20])
    images = lance_store.LanceTables(f"{tmp_path}/index", write=True).open(IMAGES)
    images.add(images.search().where("id < 3").limit(3).to_arrow())
    assert len(fill(address, ENTRIES[:20])) == 3
    assert open_store(address).count(IMAGES) == 20


def test_a_reader_keeps_what_it_has_opened(tmp_path):
    address = f"lancedb:{tmp_path}/index"
    fill(address, ENTRIES[:20])
    opened = open_store(address)
    before = opened.search(IMAGES, draw(2), 5)
    fill(address, ENTRIES[10:30], gone=[entry.name for entry in ENTRIES[:10]])
    for one, other in zip(before, opened.search(IMAGES, draw(2), 5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert opened.count(IMAGES) == 20 and opened.read_thumbnail(3) == b"a/3.jpg"
    assert open_store(address).find_image("a/3.jpg") is None


@pytest.mark.slow
def test_an_approximate_search_reaches_its_recall(tmp_path, monkeypatch):
    """Codes and partitions are kept up by an update; what filters leave is found as without."""
    address, count = f"lancedb:{tmp_path}/index", 900
    entries = [make_entry(number)._replace(captions=["text 1"]) for number in range(count)]
    metadata = pa.table({"tenth": np.arange(count) % 10})
    fill(address, entries[:800], metadata, exact=False)
    fill(address, entries, metadata, exact=False)
    opened = open_store(address)
    noted = opened.info["search"][IMAGES]
    assert noted["method"] == "ivf_rq" and noted["recall@10"]["images"] >= 0.9
    assert noted["trained_on"] == 800 and noted["rows"] == count
    exact = lance_search.LanceSearch(opened._tables[IMAGES], "id")
    monkeypatch.setattr(lance_search, "EXACT_BELOW", 10)
    for filters in ((), ("tenth<3",)):
        where = opened._metadata.write_where(filters)
        true = exact.find(draw(50, 2), 10, None, where)[0]
        found, scores = opened.search(IMAGES, draw(50, 2), 10, filters)
        assert np.mean([len({*one} & {*other}) for one, other in zip(true, found, strict=True)]) > 8
        assert (np.diff(scores, axis=1) <= 0).all()
        with monkeypatch.context() as several:
            several.setattr(lance_search, "CORES", 3)
            several.setattr(lance_search, "TOGETHER", 9)
            parts = opened.search(IMAGES, draw(50, 2), 10, filters)
        np.testing.assert_array_equal(parts, (found, scores))
    with pytest.raises(UserError, match="find .* of the 10 nearest images, less than 1.01"):
        fill(address, entries, metadata, exact=False, recall=1.01)


def test_an_update_leaves_neither_deleted_rows_nor_pieces(tmp_path, monkeypatch):
    """A search looks up every row in the deleted ones, and goes through each piece of the codes.

    Codes are written once, at the end, however often files are joined before.
    """
    monkeypatch.setattr(lance_writer, "JOINED_AFTER", 2)
    indices, seen, files = tmp_path / "index/images.lance/_indices", set(), []

    def see(first):
        seen.update(indices.iterdir())
        files.append(len(lance.dataset(f"{tmp_path}/index/images.lance").get_fragments()))

    address = f"lancedb:{tmp_path}/index"
    fill(address, ENTRIES, exact=False, recall=0.1)
    changed = [make_entry(n, version=int(n % 50 == 3)) for n in range(COUNT)]
    before = set(indices.iterdir())
    fill(address, changed, block=20, exact=False, recall=0.1, stop=see)
    assert seen == before and max(files) <= 4  # all before, and those of two blocks
    left = [
        each.num_deletions
        for kind in (IMAGES, CAPTIONS)
        for each in lance.dataset(f"{tmp_path}/index/{kind}.lance").get_fragments()
    ]
    table = lancedb.connect(f"{tmp_path}/index").open_table(IMAGES)
    assert not any(left)
    assert table.index_stats("vector_idx").num_indices == 1


def test_metadata_without_columns_and_captions_without_embeddings_are_kept(tmp_path):
    address = f"lancedb:{tmp_path}/index"
    with open_writer(address, SETTINGS, {}, lambda: DIM) as writer:
        writer.find_images(["a/1.jpg"])
        writer.add_images([make_entry(1)], VECTORS[1][None], [b""])
        writer.end_block([make_entry(1)], empty_metadata(1), False)
        writer.finish([], SearchGoal(0.9, "auto", lambda *_: {}))
    opened = open_store(address)
    assert (opened.count(IMAGES), opened.count(CAPTIONS)) == (1, 0)
    assert opened.read_images([0])[0][1:] == (make_entry(1).captions, {})


def test_what_cannot_be_an_index_is_told_in_a_line(tmp_path, monkeypatch, addresses):
    (tmp_path / "empty").mkdir()
    for address, message in (
        ("milvus:http://localhost", "milvus:.* is no place of an index: .* lancedb:PATH"),
        ("s3://bucket/index", "s3://bucket/index is no place of an index"),
        ("lancedb:", "lancedb: names no place: write lancedb:PATH"),
        (f"lancedb:{tmp_path}/none", "none is no index; big_align.tools.index writes one"),
        (f"lancedb:{tmp_path}/empty", "empty is no index; big_align.tools.index writes one"),
    ):
        with pytest.raises(UserError, match=message) as raised:
            open_store(address)
        assert "\n" not in str(raised.value)
    other = SETTINGS | {"weights": "others"}
    with pytest.raises(UserError, match="was made with other settings: .*weights"):
        with open_writer(addresses[1], other, {}, lambda: DIM):
            pass
    monkeypatch.setitem(store.STORES, "lancedb", "big_align.no_such_package")
    with pytest.raises(UserError, match=r"is missing: pip install -e '\.\[lancedb\]'"):
        open_store("lancedb:x")


@pytest.mark.slow  # it is tried again for seconds
def test_a_bucket_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(UserError, match="lancedb:s3://bucket/index: .*the same command continues"):
        open_store("lancedb:s3://bucket/index")


def test_a_connection_that_is_lost_is_told_and_the_command_continues(tmp_path, monkeypatch):
    address = f"lancedb:{tmp_path}/index"

    def refuse(asked):
        asked.close()
        raise RuntimeError("LanceError(IO): connection reset\nby peer")

    def lose(first):
        monkeypatch.setattr(lancedb.db.LOOP, "run", refuse)

    with pytest.raises(UserError, match="connection reset by peer; once this is mended, the same"):
        fill(address, SOME, block=10, stop=lose)
    monkeypatch.undo()
    assert len(fill(address, SOME, block=10)) == 30
