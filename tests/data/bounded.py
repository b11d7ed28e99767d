"""Calls that may hang or eat all memory, each in a process of its own with limits on both.

A server imports what the calls need, once, and forks for each of them. It speaks JSON, a line a
call, on its standard streams: `{"kind": ..., "path": ...}` in, an `Outcome` out.
"""

import gc
import importlib
import json
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, NamedTuple

from absl import logging
from mutations import KINDS

from big_align.errors import UserError

SECONDS, MEGABYTES = 10, 700
ROOM = 2**31  # bytes of addresses that a call may add: threads take much that they never touch


class Outcome(NamedTuple):
    """What came of a call.

    Attributes:
      what: "read", "error" (of the user), "traceback", "hang" or "memory".
      message: of the error.
      rows: what was read, as JSON holds it.
      broken: how many examples were counted as broken.
      logged: the lines that were logged meanwhile.
    """

    what: str
    message: str = ""
    rows: Any = None
    broken: int = 0
    logged: tuple[str, ...] = ()


class BoundedCalls:
    """Servers for what TensorFlow reads and for the rest: it makes a process large, and slow to
    fork."""

    def __init__(self):
        self._servers = [_Server("pyarrow.parquet"), _Server("tensorflow", "tensorflow_text")]

    def __call__(self, kind: str, path: os.PathLike) -> Outcome:
        return self._servers[KINDS[kind].tensorflow](kind, path)

    def close(self) -> None:
        for server in self._servers:
            server.close()


class _Server:
    def __init__(self, *imports: str):
        root = pathlib.Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(root), str(root / "tests" / "data"), *filter(None, sys.path)])
        self._server = subprocess.Popen(
            [sys.executable, __file__, *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
        )

    def __call__(self, kind: str, path: os.PathLike) -> Outcome:
        print(json.dumps({"kind": kind, "path": str(path)}), file=self._server.stdin, flush=True)
        return Outcome(*json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve() -> None:
    for module in sys.argv[1:]:  # once, not in every child
        importlib.import_module(module)
    gc.disable()  # a collection in a child would copy every page of the server
    gc.freeze()
    for line in sys.stdin:
        call = json.loads(line)
        kind, path = KINDS[call["kind"]], pathlib.Path(call["path"])
        outcome = _fork(kind.read, path)
        print(json.dumps(outcome), flush=True)


def _fork(read: Any, path: pathlib.Path) -> Outcome:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        outcome = json.dumps(_call(read, path)).encode()
        while outcome:
            outcome = outcome[os.write(send, outcome) :]
        os._exit(0)
    os.close(send)
    answer, end = b"", time.monotonic() + SECONDS
    while True:
        ready, _, _ = select.select([receive], [], [], max(0, end - time.monotonic()))
        piece = os.read(receive, 2**16) if ready else None
        if not piece:
            break
        answer += piece
    if piece is None:
        os.kill(child, signal.SIGKILL)
    os.close(receive)
    _, status = os.waitpid(child, 0)
    if piece is None:
        return Outcome("hang")
    return Outcome(*json.loads(answer)) if answer else Outcome("memory", f"status {status}")


def _call(read: Any, path: pathlib.Path) -> Outcome:
    logged: list[str] = []
    logger = logging.get_absl_logger()
    logger.handlers = []
    logger.addFilter(lambda record: bool(logged.append(record.getMessage())))
    before = _megabytes("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, 2 * (_megabytes("VmSize") * 2**20 + ROOM,))
    try:
        rows, broken = read(path)
        outcome = Outcome("read", "", rows, broken, tuple(logged))
    except (UserError, FileNotFoundError) as error:  # what main.py prints as a line
        outcome = Outcome("error", str(error), logged=tuple(logged))
    except MemoryError:
        return Outcome("memory", traceback.format_exc()[-2000:])
    except BaseException:
        outcome = Outcome("traceback", traceback.format_exc()[-2000:])
    used = _megabytes("VmHWM") - before
    return outcome if used < MEGABYTES else Outcome("memory", f"{used} MiB")


def _megabytes(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if x.startswith(field)) // 1024


if __name__ == "__main__":
    serve()
