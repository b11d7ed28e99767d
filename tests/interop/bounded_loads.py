"""Loads files and folders of weights, each in a process of its own with limits on memory and time.

A server imports what loading needs, once, and forks for each path. It reads a path a line, and
answers an `Outcome` a line, as JSON.
"""

import hashlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from big_align.errors import UserError
from big_align.interop import api
from big_align.interop.arrays.weight_files import open_weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADDRESSES = 3 << 30  # bytes that a load may add
SECONDS = 60


class Outcome(NamedTuple):
    """What came of a load.

    Attributes:
      what: "read", "refused" (a user's error), "traceback", or "killed" (of time, or of memory).
      message: of the error.
      digests: of what was read, by name: its type, its shape and a hash of its bytes.
      megabytes: the most memory that the process took beyond what it began with.
      seconds: how long it took.
    """

    what: str
    message: str = ""
    digests: Mapping[str, Any] = {}
    megabytes: int = 0
    seconds: float = 0.0


class BoundedLoads:
    """A server; `with` ends it."""

    def __init__(self):
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.interop.bounded_loads"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )

    def __call__(self, path: os.PathLike) -> Outcome:
        print(path, file=self._server.stdin, flush=True)
        return Outcome(*json.loads(self._server.stdout.readline()))

    def __enter__(self) -> "BoundedLoads":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve() -> None:
    for line in sys.stdin:
        print(json.dumps(_fork(pathlib.Path(line.rstrip("\n")))), flush=True)


def _fork(path: pathlib.Path) -> Outcome:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        try:
            with open(send, "w") as out:
                out.write(json.dumps(_load(path)))
        finally:
            os._exit(0)
    os.close(send)
    alarm = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
    alarm.start()
    with open(receive) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    alarm.cancel()
    return Outcome(*json.loads(text)) if text else Outcome("killed", f"status {status}")


def _load(path: pathlib.Path) -> Outcome:
    before, start = _measure("VmRSS"), time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, 2 * (1024 * _measure("VmSize") + ADDRESSES,))
    made: dict[str, Any] = {}
    try:
        made = {"what": "read", "digests": _read(path)}
    except UserError as error:
        made = {"what": "refused", "message": str(error)}
    except BaseException:
        made = {"what": "traceback", "message": traceback.format_exc()[-2000:]}
    megabytes = (_measure("VmHWM") - before) // 1024
    return Outcome(**made, megabytes=megabytes, seconds=time.monotonic() - start)


def _read(path: pathlib.Path) -> dict[str, Any]:
    """Reads the arrays of a file one after another, or the model of a folder."""
    if path.is_dir():
        return {name: _digest(array) for name, array in api.read(path).flat.items()}
    with open_weights(path) as weights:
        return {name: _digest(array) for name, array in weights.items()}


def _digest(array: np.ndarray) -> list[Any]:
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _measure(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


if __name__ == "__main__":
    serve()
