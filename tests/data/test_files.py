import contextlib
import functools
import http.server
import os
import re
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from samples import make_members, write_tar

from big_align.core.errors import Unreachable, UserError
from big_align.data import boundary, files, listing
from big_align.data.remote import fsspec_files, retries
from big_align.data.sources.parquet_source import ParquetSource
from big_align.data.sources.record_source import TFRecordSource
from big_align.data.sources.tar_source import TarSource


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


def test_a_comma_of_a_name_is_escaped_or_that_of_something_there(tmp_path):
    folder = tmp_path / "red, blue"
    folder.mkdir()
    names = [f"{folder}/{name}" for name in ("a,b.tar", "c.tar", "d.tar")]
    for name in names:
        open(name, "w").close()
    other = f"{tmp_path}/e.tar"
    open(other, "w").close()
    escaped = listing.escape_commas(str(folder))
    assert listing.expand_paths(names[0]) == names[:1]
    assert listing.expand_paths(str(folder)) == [str(folder)]
    assert listing.expand_paths(f"{escaped}/*.tar") == names
    assert listing.expand_paths(f"{escaped}/c.tar,{other}") == [names[1], other]
    assert listing.expand_paths(rf"{escaped}/{{a\,b,d}}.tar, {other}") == [
        names[0],
        names[2],
        other,
    ]
    assert listing.expand_paths([f"{folder}/*.tar"]) == names
    with pytest.raises(UserError, match="is a folder; write '.*/red") as error:
        TarSource(str(folder))
    assert listing.expand_paths(str(error.value).split("'")[1]) == names
    with pytest.raises(ValueError, match=f"no file matches '{tmp_path}/x, y.tar'"):
        listing.expand_paths(rf"{tmp_path}/x\, y.tar")


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
        ([TimeoutError()] * 4 + [ConnectionRefusedError()], Unreachable),
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
    monkeypatch.setattr(retries.time, "sleep", pauses.append)
    for call, expected in (
        (lambda: system.read(path, 3, 4), b"3456"),
        (lambda: system.read_all(path), b"0123456789"),
    ):
        left[:], pauses[:] = errors, []
        with pytest.raises(told) if told else contextlib.nullcontext():
            assert call() == expected
        assert not left and len(pauses) == len(errors) - bool(told)


@contextlib.contextmanager
def serve(answer):
    """Serves HTTP on a port of this machine; `answer` makes of a request's lines what is sent."""

    class Server(socketserver.StreamRequestHandler):
        def handle(self):
            lines = list(iter(lambda: self.rfile.readline().strip().decode(), ""))
            status, body = answer(lines)
            head = "" if lines[0].startswith("HEAD") else body
            length = "" if "Content-Length" in status else f"\r\nContent-Length: {len(body)}"
            sent = f"HTTP/1.1 {status}{length}\r\nConnection: close\r\n\r\n"
            self.wfile.write(sent.encode() + head.encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def no_pauses(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.0))


def test_a_web_server_is_asked_again_if_it_is_busy_or_lost(no_pauses):
    answers = ["503 Busy", "200 OK\r\nContent-Length: 100"]  # and the connection is lost

    def answer(lines):
        return (answers.pop(), "abc") if answers else ("200 OK", "right")

    with serve(answer) as address:
        assert files.files_of(f"{address}/x.txt").read_all(f"{address}/x.txt") == b"right"
    assert not answers


@pytest.mark.parametrize("status", ["401 No", "403 Forbidden", "429 Slower", "500 Ill", "503 Busy"])
def test_what_a_web_server_answers_is_told(no_pauses, status):
    """It is never said that nothing is there: only 404 says so."""
    with serve(lambda lines: (status, "")) as address:
        path = f"{address}/x.tar"
        system = files.files_of(path)
        kind = PermissionError if status[0:3] in ("401", "403") else OSError
        for call in (
            system.stamp, system.open, system.read_all, lambda path: system.read(path, 1, 2),
            lambda path: system.glob(path.replace("x", "*")), listing.expand_paths, files.exists,
            lambda path: listing.expand_paths([path]),
        ):  # fmt: skip
            with pytest.raises(kind, match=f"{address}/.*answers {status}") as error:
                call(path)
            assert not isinstance(error.value, FileNotFoundError)
        with pytest.raises(UserError, match=f"{path}.*answers {status}"):
            files.read_text(path)


def test_what_a_web_server_lacks_is_not_there(no_pauses):
    with serve(lambda lines: ("404 Not Found", "")) as address:
        path = f"{address}/x.tar"
        assert not files.exists(path) and files.files_of(path).glob(f"{address}/*.tar") == []
        with pytest.raises(FileNotFoundError, match=path):
            files.files_of(path).read_all(path)
        with pytest.raises(ValueError, match="no file matches"):
            listing.expand_paths(path)


def test_a_redirect_is_followed_and_a_circle_of_them_is_told(no_pauses):
    def answer(lines):
        known = {"/a": "302 Found\r\nLocation: /b", "/c": "302 Found\r\nLocation: /c"}
        return known.get(lines[0].split()[1], "200 OK"), "right"

    with serve(answer) as address:
        assert files.files_of(address).read_all(f"{address}/a") == b"right"
        with pytest.raises(OSError, match=f"{address}/c: .*TooManyRedirects"):
            files.exists(f"{address}/c")


def test_a_web_server_that_is_gone_or_silent_is_no_missing_file(no_pauses, monkeypatch):
    with serve(lambda lines: ("200 OK", "")) as gone:
        pass
    for call in (files.exists, listing.expand_paths, files.files_of(gone).read_all):
        with pytest.raises(OSError, match=f"{gone}/x.*[Cc]onnect") as error:
            call(f"{gone}/x.tar")
        assert not isinstance(error.value, FileNotFoundError)
    monkeypatch.setattr(fsspec_files, "SILENCE", 0.2)
    done = threading.Event()
    with serve(lambda lines: (done.wait(60) and "200 OK", "")) as silent:
        for call in (files.exists, files.files_of(silent).read_all):
            with pytest.raises(OSError, match=f"{silent}/x.*was silent"):
                call(f"{silent}/x.tar")
        done.set()


def test_a_web_server_that_sends_no_parts_is_told(no_pauses, tmp_path):
    """Such as Python's http.server."""
    whole = "0123456789" * 2**20  # more than fsspec reads at a time

    def answer(lines):
        part = next((re.findall(r"\d+", line) for line in lines if "Range:" in line), None)
        if not part or "/parts" not in lines[0]:
            return "200 OK", whole
        if int(part[0]) >= len(whole):
            return "416 Range Not Satisfiable", ""
        return "206 Partial Content", whole[int(part[0]) : int(part[1]) + 1]

    with serve(answer) as address:
        system = files.files_of(address)
        assert system.read(f"{address}/parts", 3, 4) == b"3456"
        assert system.read(f"{address}/parts", len(whole), 4) == b""
        path = f"{address}/x.tar"
        with pytest.raises(UserError, match=f"{path}: the server sends whole files"):
            system.read(path, 3, 4)
        with system.open(path) as file, pytest.raises(UserError, match=f"{path}: .*whole files"):
            file.seek(9 * 2**20)
            file.read(1)


def test_a_run_ends_at_a_web_server_that_sends_no_parts(no_pauses, tmp_path):
    """No example is to blame, so none is left out for it."""
    write_tar(tmp_path / "x.tar", make_members(0))
    data = (tmp_path / "x.tar").read_bytes()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = f"http://127.0.0.1:{server.server_address[1]}/x.tar"
        source = TarSource(path)  # it is so small that it was read whole
        for read in (boundary.read_example, boundary.read_texts):
            with pytest.raises(UserError, match=f"{path}: the server sends whole files"):
                read(source, 0, 0)
        assert files.files_of(path).read_all(path) == data
        server.shutdown()


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
