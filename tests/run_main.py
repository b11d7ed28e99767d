"""Runs of main.py in processes of their own, as a user starts, kills and continues them."""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tests.forked_programs import forking_python
from tests.xla_flags import list_flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = "tests/tiny_config.py"
KEEP_PROGRAMS = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
"""Variables by which tests keep what they compile, from one run of them to the next."""


def environment(devices: int) -> dict[str, str]:
    """The environment of a fresh shell with so many virtual CPU devices."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(f"{k}={v}" for k, v in list_flags(devices).items()),
        # A killed run and its continuation compile the same programs.
        **KEEP_PROGRAMS,
    }


@functools.cache
def _forking_python() -> str:
    """Returns the path of a `python` that forks, for all runs of this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    variables = environment(1)
    return str(stack.enter_context(forking_python(pathlib.Path(folder, "bin"), variables)))


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """One run, started at once; several processes go through launch/local.sh.

    They are forks (tests/forked_programs.py) behind processes that take signals for them.
    """

    def __init__(self, workdir, *flags, config=TINY, devices=8, processes=1):
        self.workdir = pathlib.Path(workdir)
        command = [_forking_python(), "main.py", f"--config={config}", f"--workdir={workdir}"]
        command += flags
        variables = environment(devices // processes)
        if processes > 1:
            command = ["launch/local.sh", str(processes), "--", *command, "--distributed"]
            variables["PORT"] = str(find_port())
        self._out, self._err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=self._out, stderr=self._err
        )

    @property
    def pid(self) -> int:
        """Of the process or, of several, of their launcher."""
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_for_step(self, step: int, seconds: float = 300) -> None:
        """Returns when the metrics of a step have been written."""
        end = time.monotonic() + seconds
        while (self.steps or [0])[-1] < step:
            assert self._process.poll() is None, f"ended before step {step}: {self.err}"
            if time.monotonic() > end:
                self._process.terminate()
                raise TimeoutError(f"no step {step} after {seconds} s: {self.err}")
            time.sleep(0.01)

    def wait_for_owner(self, seconds: float = 300) -> None:
        """Returns when the run owns its workdir: its processes have joined, and it has begun."""
        end = time.monotonic() + seconds
        while not (self.workdir / "owner.json").exists():
            assert self.is_running and time.monotonic() < end, self.err
            time.sleep(0.01)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = 300) -> int:
        """Returns the exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGTERM)
            raise

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in read_losses(self.workdir)]

    @property
    def out(self) -> str:
        return _read(self._out)

    @property
    def err(self) -> str:
        return _read(self._err)


class Processes:
    """The processes of one run, started without a launcher: nobody ends them but themselves.

    Args:
      workdir: of all of them.
      flags: of all of them.
      config: as in `--config`.
      whole: whether they are no forks. A signal that stops a process would stop what stands before
        a fork, and a fork has imported all that it needs.
      own_flags: more flags, by the number of the process.
      own_folders: where main.py is started instead, by the number of the process.
      own_variables: more of the environment, by the number of the process.
    """

    def __init__(
        self,
        workdir,
        *flags,
        config=TINY,
        count=2,
        whole=False,
        own_flags=None,
        own_folders=None,
        own_variables=None,
    ):
        self.workdir = pathlib.Path(workdir)
        common = {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{find_port()}",
            "JAX_NUM_PROCESSES": str(count),
        }
        python = sys.executable if whole else _forking_python()
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(count)]
        self.processes = []
        for number, output in enumerate(self._outputs):
            own = (own_variables or {}).get(number, {})
            variables = common | {"JAX_PROCESS_ID": str(number)} | own
            command = [python, "main.py", f"--config={config}", f"--workdir={workdir}"]
            command += ["--distributed", *flags, *(own_flags or {}).get(number, ())]
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=(own_folders or {}).get(number, ROOT),
                    env=environment(devices=1) | variables,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def wait_for_step(self, step: int, seconds: float = 300) -> None:
        """Returns when the metrics of a step have been written."""
        end = time.monotonic() + seconds
        while (read_losses(self.workdir) or [(0, 0)])[-1][0] < step:
            assert all(process.poll() is None for process in self.processes), self.outputs
            assert time.monotonic() < end, f"no step {step} after {seconds} s"
            time.sleep(0.01)

    def wait(self, seconds: float = 300) -> list[int]:
        """Returns the exit statuses; kills what has not ended by then."""
        end = time.monotonic() + seconds
        try:
            return [process.wait(end - time.monotonic()) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    @property
    def outputs(self) -> list[str]:
        """What each process has printed."""
        return [_read(file) for file in self._outputs]


def _read(file) -> str:
    file.seek(0)
    return file.read()


def read_losses(workdir) -> list[tuple[int, float]]:
    """The step and the loss of every line of training in metrics.jsonl, in their order."""
    path = pathlib.Path(workdir) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(record["step"], record["loss"]) for record in records if "loss" in record]
