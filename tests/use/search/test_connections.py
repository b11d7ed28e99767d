"""Connections that stall, trickle or break off: others are served, and nothing is a traceback."""

import contextlib
import logging
import socket
import threading
import time

import pytest
from indexes import encode_photo, load

uvicorn = pytest.importorskip("uvicorn", reason="the server needs .[serve]")

from big_align.use.search import server  # noqa: E402

TOKEN = "a-token-of-many-letters"


@pytest.fixture(scope="module")
def app(table_index, model):
    return server.make_app(load(table_index, model), TOKEN)


@pytest.fixture
def address(app):
    """Serves the page as the command does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = uvicorn.Server(uvicorn.Config(app, log_config=None, **server.SETTINGS))
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()
        serving.should_exit = True
        thread.join()


def begin(address, *lines, body=b""):
    """Opens a connection and sends the beginning of a request."""
    opened = socket.create_connection(address, timeout=30)
    opened.sendall("\r\n".join(lines).encode() + body)
    return opened


def read_all(opened):
    """Reads until the server closes the connection; returns what it has sent."""
    data = b""
    with opened, contextlib.suppress(ConnectionResetError):
        while piece := opened.recv(65536):
            data += piece
    return data


def upload(address, size, body):
    lines = "POST /upload HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}"
    return begin(
        address, *lines, "Content-Type: image/jpeg", f"Content-Length: {size}", "", "", body=body
    )


def get_page(address):
    lines = "GET / HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", "Connection: close"
    return read_all(begin(address, *lines, "", ""))


@pytest.mark.parametrize("begun", ["", "GET / HTTP/1.1\r\nHost: x\r\nX-A: "])
def test_headers_that_never_end_keep_nobody_out(address, begun):
    stalled = [begin(address, begun) for _ in range(2 * server.CONNECTIONS)]
    assert get_page(address).startswith(b"HTTP/1.1 200")
    for each in stalled:
        each.close()


def test_a_header_that_does_not_arrive_in_time_ends_the_connection(address, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    assert read_all(begin(address, "GET / HT")) == b""
    assert read_all(begin(address)) == b""


def test_a_body_of_a_stranger_keeps_no_connection(address, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    opened = begin(address, "POST /upload HTTP/1.1", "Host: x", "Content-Length: 9999", "", "")
    assert read_all(opened).startswith(b"HTTP/1.1 401")


def test_a_body_that_pauses_is_refused(address, monkeypatch):
    monkeypatch.setattr(server, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    answer = read_all(upload(address, 9999, encode_photo(1)[:100]))
    assert answer.startswith(b"HTTP/1.1 408") and b"nothing came for 0.2 seconds" in answer


def test_a_body_that_trickles_ends_in_time(address, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    opened = upload(address, 9999, b"")
    with pytest.raises(OSError), opened:
        for _ in range(600):
            opened.sendall(b"x")
            time.sleep(0.05)


def test_an_upload_that_breaks_off_is_no_error(address, caplog):
    caplog.set_level(logging.INFO, "uvicorn.error")
    for size in (0, 50):
        upload(address, 9999, encode_photo(1)[:size]).close()
    photo = encode_photo(1)
    with upload(address, len(photo), photo) as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
