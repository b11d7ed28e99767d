import contextlib
import os
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from big_align.data import files, listing
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.record_source import TFRecordSource
from big_align.data.sources.tar_source import TarSource
from big_align.errors import UserError


def test_braces_globs_and_commas(tmp_path):
    for name in ("a-0.tar", "a-1.tar", "a-2.tar", "b.tar", "c.txt"):
        (tmp_path / name).write_bytes(b"")

    def names(pattern):
        return [path.rsplit("/", 1)[1] for path in listing.expand_paths(pattern)]

    assert names(f"{tmp_path}/a-*.tar") == ["a-0.tar", "a-1.tar", "a-2.tar"]
    assert names(f"{tmp_path}/a-{{1..2}}.tar") == ["a-1.tar", "a-2.tar"]
    assert names(f"{tmp_path}/{{b.tar,c.txt}}") == ["b.tar", "c.txt"]
    assert names(f"{tmp_path}/b.tar, {tmp_path}/a-{{0,2}}.tar") == ["b.tar", "a-0.tar", "a-2.tar"]
    assert names(f"{tmp_path}/a-?.tar,{tmp_path}/a-1.tar") == ["a-0.tar", "a-1.tar", "a-2.tar"]


def test_an_entry_of_a_list_that_is_a_file_is_no_pattern(tmp_path):
    names = ("part1.tar", "part[1].tar", "a{b}.tar", "a,b.tar", "c0.tar", "c1.tar")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    paths = [f"{tmp_path}/{name}" for name in names]
    assert listing.expand_paths(paths) == paths
    assert listing.expand_paths([f"{tmp_path}/c{{0..1}}.tar"]) == paths[-2:]
    many = ",".join(["0"] * 1000)  # too long for the name of a file
    assert listing.expand_paths([f"{tmp_path}/c{{{many}}}.tar"]) == paths[-2:-1]
    assert listing.expand_paths(sorted(listing.expand_paths(f"{tmp_path}/part*"))) == sorted(
        paths[:2]
    )


def test_brackets_are_part_of_a_name_that_is_there_or_that_no_pattern_finds(tmp_path):
    (tmp_path / "set [2024]").mkdir()
    for name in ("set [2024]/a.tar", "a1.tar", "a2.tar"):
        (tmp_path / name).write_bytes(b"")
    for name in ("set [2024]/a.tar", "set [2024]"):
        assert listing.expand_paths(f"{tmp_path}/{name}") == [f"{tmp_path}/{name}"]
    assert len(listing.expand_paths(f"{tmp_path}/a[12].tar")) == 2
    assert listing.expand_paths(f"{tmp_path}/set [2024]/*.tar") == [f"{tmp_path}/set [2024]/a.tar"]
    assert listing.expand_paths(f"{tmp_path}/set [2024]/?.tar") == [f"{tmp_path}/set [2024]/a.tar"]
    (tmp_path / "set 2").mkdir()
    (tmp_path / "set 2" / "b.tar").touch()  # found as a pattern, which counts first
    assert listing.expand_paths(f"{tmp_path}/set [2024]/*.tar") == [f"{tmp_path}/set 2/b.tar"]


def test_a_folder_instead_of_shards_is_told_with_their_pattern(tmp_path):
    (tmp_path / "a.tar").touch()
    assert listing.expand_paths(f"{tmp_path}/*.tar", "*.tar") == [f"{tmp_path}/a.tar"]
    for source, ending in (
        (TarSource, "tar"),
        (ParquetSource, "parquet"),
        (TFRecordSource, "tfrecord"),
    ):
        with pytest.raises(UserError, match=rf"is a folder; write '{tmp_path}/\*.{ending}"):
            source(f"{tmp_path}/")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.tar").write_bytes(b"")
    for path in ("~/a.tar", "~/*.tar", ["~/a.tar"]):
        assert listing.expand_paths(path) == [f"{tmp_path}/a.tar"]


def test_brace_ranges_keep_their_zeros():
    assert listing._expand_braces("x-{008..010}-{a,b}") == [
        "x-008-a", "x-008-b", "x-009-a", "x-009-b", "x-010-a", "x-010-b",
    ]  # fmt: skip


def test_nothing_found_names_the_pattern(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"")
    for pattern in ("none-*.tar", "none.tar"):
        with pytest.raises(ValueError, match="no file matches '.*none") as error:
            listing.expand_paths(f"{tmp_path}/a.tar,{tmp_path}/{pattern}")
        assert pattern in str(error.value)


def test_local_and_remote_files_read_alike(tmp_path):
    data = bytes(range(256)) * 8
    (tmp_path / "x.bin").write_bytes(data)
    fsspec.filesystem("memory").pipe("/bucket/x.bin", data)
    for path in (f"{tmp_path}/x.bin", "memory://bucket/x.bin"):
        system = files.files_of(path)
        assert [name.rpartition("/")[2] for name in system.glob(path[:-3] + "*")] == ["x.bin"]
        assert system.stamp(path)[0] == len(data)
        assert system.read(path, 300, 70) == data[300:370]
        assert system.read(path, 2040, 70) == data[2040:]
        with system.open(path) as file:
            file.seek(5)
            assert file.read(3) == data[5:8]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([ConnectionResetError()], None),
        ([TimeoutError(), ConnectionRefusedError()], None),
        ([TimeoutError()] * 2 + [ConnectionRefusedError()], ConnectionRefusedError),
        ([FileNotFoundError()], FileNotFoundError),
        ([PermissionError()], PermissionError),
        ([ValueError()], ValueError),
    ],
)
def test_a_remote_read_is_tried_again_if_the_network_fails(monkeypatch, errors, told):
    fsspec.filesystem("memory").pipe("/bucket/x.bin", b"0123456789")
    path, pauses = "memory://bucket/x.bin", []
    system = files.files_of(path)
    read, left = system._filesystem.cat_file, []

    def fail(*arguments, **options):
        if left:
            raise left.pop(0)
        return read(*arguments, **options)

    monkeypatch.setattr(system._filesystem, "cat_file", fail)
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    for call, expected in (
        (lambda: system.read(path, 3, 4), b"3456"),
        (lambda: system.read_all(path), b"0123456789"),
    ):
        left[:], pauses[:] = errors, []
        with pytest.raises(told) if told else contextlib.nullcontext():
            assert call() == expected
        assert not left and len(pauses) == len(errors) - bool(told)


@pytest.mark.parametrize(
    ("answer", "requests", "told"),
    [
        (b"200 OK\r\nContent-Length: 100\r\n\r\nabc", 2, None),  # and the connection is lost
        (b"503 Busy\r\nContent-Length: 0\r\n\r\n", 2, None),
        (b"403 No\r\nContent-Length: 0\r\n\r\n", 1, PermissionError),
    ],
)
def test_errors_of_http_are_those_of_files(monkeypatch, answer, requests, told):
    pytest.importorskip("aiohttp")
    answers = [answer]

    class Server(socketserver.StreamRequestHandler):
        def handle(self):
            while self.rfile.readline().strip():
                pass
            asked.append(1)
            whole = b"200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nright"
            self.wfile.write(b"HTTP/1.1 " + (answers.pop() if answers else whole))

    asked = []
    monkeypatch.setattr(files, "PAUSES", (0.0, 0.0))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = f"http://127.0.0.1:{server.server_address[1]}/x.txt"
        with pytest.raises(told, match=path) if told else contextlib.nullcontext():
            assert files.files_of(path).read_all(path) == b"right"
        server.shutdown()
    assert len(asked) == requests


def test_tensorflow_files_read_alike(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"0123456789")
    system = files.TensorFlowFiles()
    assert system.glob(f"{tmp_path}/*.bin") == [str(path)]
    assert system.stamp(str(path))[0] == 10
    assert system.read(str(path), 3, 4) == b"3456"
    for call in (system.stamp, system.open, system.read_all):
        with pytest.raises(FileNotFoundError):
            call(f"{tmp_path}/none")
        with pytest.raises(OSError, match="nothing://none: .*not implemented"):
            call("nothing://none")


def test_a_path_that_nothing_opens_is_told_with_what_would(monkeypatch):
    with pytest.raises(UserError, match="nothing://x/y.tar: .*nothing"):
        listing.expand_paths("nothing://x/y.tar")
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(UserError, match="s3://bucket/x.tar: .*s3fs"):
        listing.expand_paths("s3://bucket/x.tar")


def test_many_files_do_not_stay_open(tmp_path):
    system = files.LocalFiles()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2 * files.OPEN_FILES):
        (tmp_path / str(number)).write_bytes(b"x")
        system.read(str(tmp_path / str(number)), 0, 1)
    assert len(os.listdir("/proc/self/fd")) <= before + files.OPEN_FILES
    del system
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_file_stays_open_while_a_thread_reads_it(tmp_path, monkeypatch):
    """With room for one open file, threads evict each other's all the time."""
    monkeypatch.setattr(files, "OPEN_FILES", 1)
    system = files.LocalFiles()
    for number in range(4):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)

    def read(turn: int) -> bool:
        return system.read(str(tmp_path / str(turn % 4)), 0, 100) == bytes([turn % 4]) * 100

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(4000)))
