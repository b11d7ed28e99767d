"""Runs tests on the package as it would be with a fault in one file, which stays as it is.

A process that has imported the libraries, and nothing of the package, forks for each fault. The
fork reads another text in place of that file whenever it is imported.
"""

import contextlib
import gc
import importlib.machinery
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.run_main import ROOT, environment

SECONDS = 300
"""How long the tests of a fault may take; one that makes them wait for ever is not found."""


class Fault(NamedTuple):
    """A fault that somebody could make, and the tests that find it.

    Attributes:
      title: what is wrong.
      file: path of the file from the top of the checkout.
      right: a text that is in the file exactly once.
      wrong: what stands there instead.
      tests: ids of tests of which each must fail: a file and a function, as pytest takes them.
    """

    title: str
    file: str
    right: str
    wrong: str
    tests: Sequence[str]

    def plant(self) -> str:
        """Returns the text of the file with the fault."""
        text = (ROOT / self.file).read_text()
        count = text.count(self.right)
        assert count == 1, f"{self.title}: {self.file} has {self.right!r} {count} times"
        return text.replace(self.right, self.wrong)


class Outcome(NamedTuple):
    """What became of the tests of a fault.

    Attributes:
      status: what pytest returns: 0 if all passed, 1 if some failed; None if they took too long.
      failed: tests of which at least one case failed.
      output: what pytest printed.
    """

    status: int | None
    failed: list[str]
    output: str


@contextlib.contextmanager
def planter(folder: pathlib.Path) -> Iterator[Callable[[Fault], Outcome]]:
    """Starts the process that forks; yields what plants a fault and runs its tests.

    Args:
      folder: an empty one, for what tests write.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.mutations.planting", str(folder)],
        cwd=ROOT,
        env=environment(devices=8),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def run(fault: Fault) -> Outcome:
            request = str(ROOT / fault.file), fault.plant(), fault.tests
            print(json.dumps(request), file=process.stdin, flush=True)
            status = json.loads(process.stdout.readline())
            found, output = folder / "failed", folder / "output"
            failed = json.loads(found.read_text()) if found.exists() else []
            return Outcome(status, failed, output.read_text(errors="replace"))

        try:
            yield run
        finally:
            process.stdin.close()


def _serve(folder: pathlib.Path) -> None:
    """Answers each request with the status of its tests."""
    for line in sys.stdin:
        (folder / "failed").unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX has no threads before its first array
            child = os.fork()
        if not child:
            os.setsid()
            with open(folder / "output", "w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            _run(*json.loads(line), folder)
        ended = os.pidfd_open(child)
        in_time = bool(select.select([ended], [], [], SECONDS)[0])
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # with what it has started
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(status if in_time else None), flush=True)


def _run(path: str, text: str, tests: Sequence[str], folder: pathlib.Path) -> None:
    """Runs tests with another text in place of a file, and ends the process."""
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not slow"]
    options += ["--basetemp", str(folder / "files")]
    findings, status = _Findings(), pytest.ExitCode.INTERNAL_ERROR
    try:
        _replace(path, text)
        status = pytest.main([*options, *tests], plugins=[findings])
        (folder / "failed").write_text(json.dumps(sorted(findings.failed)))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _replace(path: str, text: str) -> None:
    """Lets imports read a text in place of a file; neither it nor its bytecode is touched."""
    # Loaders that other libraries derive from this one, as jaxtyping does, read by it.
    loader = importlib.machinery.SourceFileLoader
    read, describe = loader.get_data, loader.path_stats

    def get_data(self, name: str) -> bytes:
        return text.encode() if str(name) == path else read(self, name)

    def path_stats(self, name: str) -> dict:
        if str(name) == path:
            raise OSError("bytecode is neither read nor written for a file without a date")
        return describe(self, name)

    loader.get_data, loader.path_stats = get_data, path_stats


class _Findings:
    """Notes which tests have failed, and leaves out what is left of their cases."""

    def __init__(self):
        self.failed: set[str] = set()

    @staticmethod
    def _name(id: str) -> str:
        return id.partition("[")[0]

    def pytest_runtest_protocol(self, item, nextitem) -> bool | None:
        return True if self._name(item.nodeid) in self.failed else None

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and report.when == "call":  # and not while its fixtures were made
            self.failed.add(self._name(report.nodeid))


if __name__ == "__main__":
    import flax.linen  # noqa: F401
    import jaxtyping  # noqa: F401
    import optax  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import pytest
    import tensorflow  # noqa: F401

    gc.freeze()  # what is imported is shared by all forks
    _serve(pathlib.Path(sys.argv[1]))
