"""A bucket on loopback: moto's S3 behind a front that fails by a plan, with a log.

`python -m tests.s3_server` serves one until it is stopped, and prints the variables of a client.
"""

import contextlib
import http.server
import io
import os
import random
import re
import threading
import time
from typing import NamedTuple

import pytest

BUCKET = "pairs"
REFUSALS = {
    "slow_down": (503, "SlowDown", "Please reduce your request rate."),
    "internal_error": (500, "InternalError", "We encountered an internal error."),
    "too_many": (429, "TooManyRequests", "Too many requests."),
    "forbidden": (403, "AccessDenied", "Access Denied"),
}
"""Faults that are answers; the request is not done."""
KINDS = (*REFUSALS, "cut", "lose", "slow", "close")
"""All faults. cut: the body of a PUT is not read whole, or that of a GET not sent whole; lose: what
was asked is done, and the answer is lost; close: the connection ends without an answer."""


def skip_without():
    """Skips a test where the packages are not installed."""
    for name in ("s3fs", "moto", "flask_cors"):
        pytest.importorskip(name, reason="a bucket on loopback takes s3fs, moto[s3] and flask-cors")


class Request(NamedTuple):
    method: str
    path: str  # with its query
    range: str | None


class Fault(NamedTuple):
    pattern: str  # of "METHOD /bucket/key?query"
    kind: str
    times: float


class Bucket:
    """The state of the server. `fail` plans a fault; `plan` draws them by a seed.

    A plan depends on each request alone and on how often it has come, not on their order.
    """

    def __init__(self):
        self.log, self.faults, self.taken = [], [], []
        self.seed, self.rate, self.kinds, self.in_a_row = 0, 0.0, (), 0
        self.slowness, self.counts, self.lock = 0.5, {}, threading.Lock()
        self.asking = threading.Lock()  # moto looks for a key, then makes it; S3 does both at once

    def fail(self, pattern, kind, times=1):
        assert kind in KINDS
        self.faults.append(Fault(pattern, kind, times))

    def plan(self, seed, rate, kinds, in_a_row=2):
        """Plans that this part of all requests fails; none more than so often in a row."""
        self.seed, self.rate, self.kinds, self.in_a_row = seed, rate, tuple(kinds), in_a_row
        self.counts.clear()

    def heal(self):
        self.faults.clear()
        self.rate = 0.0

    def take_fault(self, request):
        with self.lock:
            self.log.append(request)
            kind = self._find_fault(request)
            if kind:
                self.taken.append((kind, request))
            return kind

    def _find_fault(self, request):
        for number, fault in enumerate(self.faults):
            if fault.times and re.search(fault.pattern, f"{request.method} {request.path}"):
                self.faults[number] = fault._replace(times=fault.times - 1)
                return fault.kind
        if not self.rate:
            return None
        time_, row = self.counts.get(request, (0, 0))
        drawn = random.Random(f"{self.seed} {request} {time_}")
        failed = drawn.random() < self.rate and row < self.in_a_row
        self.counts[request] = time_ + 1, row + 1 if failed else 0
        return drawn.choice(self.kinds) if failed else None

    def read(self, key):
        """Returns an object as it is stored, without a request; None if there is none."""
        return self.objects().get(key)

    def objects(self):
        """Returns all objects by their keys, as they are stored."""
        found = self._find().keys
        return {name: found[name].value for name in found}

    def uploads(self):
        """Returns the uploads in parts that were neither completed nor given up."""
        return list(self._find().multiparts)

    def _find(self):
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["global"].buckets[BUCKET]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    app: object

    def log_message(self, *args):
        pass

    def do_GET(self):
        request = Request(self.command, self.path, self.headers.get("Range"))
        fault, size = self.bucket.take_fault(request), int(self.headers.get("Content-Length") or 0)
        with contextlib.suppress(ConnectionError):
            self.answer(fault, size)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def answer(self, fault, size):
        if fault == "slow":
            time.sleep(self.bucket.slowness)
        if fault == "close" or (fault == "cut" and size):
            self.rfile.read(size // 2 if fault == "cut" else 0)
            self.close_connection = True
            return
        body = self.rfile.read(size)
        if fault in REFUSALS:
            status, code, message = REFUSALS[fault]
            content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))]
        else:
            status, headers, content = self.forward(body)
        if fault == "lose":
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("date", "server", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if fault == "cut":
            content, self.close_connection = content[: len(content) // 2], True
        self.wfile.write(b"" if self.command == "HEAD" else content)

    def forward(self, body):
        """Asks moto; returns its status, headers and content."""
        from werkzeug.test import EnvironBuilder, run_wsgi_app

        path, _, query = self.path.partition("?")
        headers = [pair for pair in self.headers.items() if pair[0].lower() != "expect"]
        builder = EnvironBuilder(
            path, self.bucket.url, query, self.command, io.BytesIO(body), headers=headers
        )
        with self.bucket.asking:
            chunks, status, headers = run_wsgi_app(self.app, builder.get_environ(), buffered=True)
        content = b"".join(chunks)
        if self.command != "HEAD" and "Content-Length" not in headers:
            headers["Content-Length"] = str(len(content))
        return int(status.split()[0]), list(headers), content


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # clients that were killed


@contextlib.contextmanager
def serve(port=0):
    """Serves an empty bucket `s3://pairs` until the end of the block."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends

    for backends in s3_backends.values():  # of whoever has served before in this process
        for backend in backends.values():
            backend.reset()
    bucket = Bucket()
    app = DomainDispatcherApplication(create_backend_app)
    handler = type("OwnHandler", (Handler,), {"bucket": bucket, "app": staticmethod(app)})
    server = Server(("127.0.0.1", port), handler)
    bucket.url = f"http://127.0.0.1:{server.server_address[1]}"
    s3_backends["123456789012"]["global"].create_bucket(BUCKET, "us-east-1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def list_variables(bucket):
    """Returns the environment of a program that uses this bucket."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def make_client(bucket):
    """Returns an s3fs of its own, as another program has one."""
    import s3fs

    about = {"key": "key", "secret": "secret", "endpoint_url": bucket.url}
    return s3fs.S3FileSystem(**about, skip_instance_cache=True)


def use(bucket, monkeypatch):
    """Makes s3fs in this process use the bucket."""
    for name, value in list_variables(bucket).items():
        monkeypatch.setenv(name, value)
    forget_clients()


def forget_clients():
    """Makes s3fs in this process read the environment again."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


if __name__ == "__main__":
    with serve(int(os.environ.get("PORT", 0))) as served, contextlib.suppress(KeyboardInterrupt):
        for name, value in list_variables(served).items():
            print(f"export {name}={value}", flush=True)
        threading.Event().wait()
