"""Starts programs of the checkout as forks of a process that has imported what they import.

The imports of a program take several times as long as most of what tests do with one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
READ_AT_IMPORT = ("JAX_", "TF_", "GLIBC_")
"""Beginnings of environment variables that a library has read when it has been imported."""
READ_LATER = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_LOCAL_DEVICE_IDS",
)
"""Variables that begin so and are read when processes join."""

STARTER = """#!{python} -IS
import json, os, signal, socket, sys

words, fixed = sys.argv[1:], {fixed}
own = words[:1] == ["main.py"] or words[:1] == ["-m"] and words[1].startswith("big_align")
names = [k for k in os.environ if k.startswith({beginnings}) and k not in {later}]
if not own or {{k: os.environ[k] for k in names}} != fixed:
    os.execv({python!r}, [{python!r}, *words])
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({address!r})
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: connection.send(str(number).encode()))
request = {{"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}}
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
status = int(connection.recv(16) or -signal.SIGKILL)
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""
"""A program that is called like Python and asks for a fork; it is Python for all other programs.

It passes signals on, ends as the fork does, and with it even a SIGKILL ends the fork.
"""


def _read_at_import(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(READ_AT_IMPORT) and name not in READ_LATER
    }


@contextlib.contextmanager
def forking_python(folder: pathlib.Path, variables: dict[str, str]) -> Iterator[pathlib.Path]:
    """Makes a `python` whose runs of `main.py` and `-m big_align...` are forks.

    Args:
      folder: where it is made; an empty one, or not there.
      variables: the environment of the imports; a program whose own differs in what these have
        read is started as it would be without forks.

    Yields:
      The path of `python`. With the end of the block all its programs end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    address = folder / "socket"
    command = [sys.executable, "-m", "tests.forked_programs", str(address)]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while not address.exists():
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        python = folder / "python"
        python.write_text(
            STARTER.format(
                python=sys.executable,
                fixed=_read_at_import(variables),
                beginnings=READ_AT_IMPORT,
                later=READ_LATER,
                address=str(address),
            )
        )
        python.chmod(0o755)
        yield python
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _keep_what_each_compiles() -> None:
    """Of several processes, JAX lets the first alone write its cache, for the sake of buckets.

    On CPUs each has programs of its own, so that the others would compile in every test.
    """
    from jax._src import compiler

    first = types.SimpleNamespace(global_state=types.SimpleNamespace(process_id=0))
    names = {**vars(compiler), "distributed": first}
    compiler._cache_write = types.FunctionType(compiler._cache_write.__code__, names)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX has no threads before its first array
        return os.fork()


def _take_request(address: str) -> dict[str, Any]:
    """Waits for requests; returns one in each program's process, and never in its own."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address + ".new")
    listener.listen(16)
    os.rename(address + ".new", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        connection, _ = listener.accept()
        if _fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if child := _fork():
            for descriptor in descriptors:
                os.close(descriptor)
            _keep(child, connection)
            os._exit(0)
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return json.loads(message)


def _keep(child: int, connection: socket.socket) -> None:
    """Passes signals on to a program, and its status back; ends it when nobody waits for it."""
    ended = os.pidfd_open(child)
    while ended not in select.select([connection, ended], [], [])[0]:
        message = connection.recv(16)
        os.kill(child, int(message or signal.SIGKILL))
        if not message:
            break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(status).encode())


def _exit(status: int) -> None:
    """Ends as an interpreter does, but for taking the modules apart: that alone takes seconds."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(words: list[str], folder: str, variables: dict[str, str]) -> None:
    """Does what Python does with a command line."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-m":
        sys.path[0] = folder
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(pathlib.Path(words[0]).resolve().parent)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _import_all() -> None:
    """Imports the package, but for tools, which declare their flags as they are started."""
    others = r"big_align\.(tools|configs|prepare|planning|suites|__main__)\b"
    for module in pkgutil.walk_packages([str(ROOT / "big_align")], "big_align."):
        if not re.match(others, module.name):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra
                importlib.import_module(module.name)
    for name in ("tensorflow_text", "sklearn.datasets"):
        importlib.import_module(name)
    Image.init()


if __name__ == "__main__":
    _import_all()
    _keep_what_each_compiles()
    gc.freeze()  # what is imported is shared by all forks
    request = _take_request(sys.argv[1])
    try:
        _run(**request)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        _exit(1 if isinstance(ended.code, str) else ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        _exit(1)
    _exit(0)
