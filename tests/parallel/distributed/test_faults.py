"""What processes do when one of them differs, fails, is killed or hangs, or its disk does.

They are started without a launcher, so that they have to leave by themselves. As a script,
`python -m tests.parallel.distributed.test_faults`, it prints the table of docs/scale/monitoring.md.
"""

import pathlib
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

import pytest

from big_align.data.sources.digits import DIGIT_CLASSES, DIGIT_TEMPLATES
from tests.data.samples import write_tar
from tests.labeled_digits import draw_digits
from tests.run_main import ROOT, Processes, environment

FLAGS = ("--config.evaluators={}", "--config.total_steps=100000")
LEAVING_SECONDS = 15
"""For what is told at once; interpreters and XLA share two cores here."""


def make_hosts(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Makes a folder for each process, where main.py can be started beside files of its own."""
    hosts = {number: folder / f"host {number}" for number in range(2)}
    for host in hosts.values():
        host.mkdir()
        for name in ("main.py", "tests"):
            (host / name).symlink_to(ROOT / name)
    return hosts


class Fault:
    """A fault and what should follow; `start` and `strike` bring it about.

    Attributes:
      title: what it is called in the table.
      statuses: the exit statuses of the processes.
      messages: a pattern for the last line of each process's output.
      report: a pattern for what process 0 says before.
      seconds: the longest time from the fault, or from the start, to the last end.
      whole: whether its processes are no forks.
    """

    title: str
    statuses: tuple[int, ...] = (1, 1)
    messages: tuple[str, ...]
    report: str = ""
    seconds: float = LEAVING_SECONDS
    whole: bool = False

    def start(self, folder: pathlib.Path) -> Processes:
        return Processes(folder / "run", *FLAGS, whole=self.whole)

    def strike(self, processes: Processes) -> None:
        """Lets the fault happen and returns as it does; by default it is there from the start."""


class DifferingSeed(Fault):
    title = "another seed in process 1"
    seconds = 60
    messages = (r"error: process 1 has config\.seed = 1, process 0 has 0",) * 2

    def start(self, folder):
        return Processes(folder / "run", *FLAGS, own_flags={1: ["--config.seed=1"]})


class DifferingCode(Fault):
    title = "another file in process 1"
    seconds = 60
    messages = (
        r"error: process 1 has big_align/losses/contrastive\.py = a file of SHA-256 \w+, "
        r"process 0 has a file of SHA-256 \w+",
    ) * 2

    def start(self, folder):
        other = folder / "checkout"
        for name in ("big_align", "configs", "tests"):
            shutil.copytree(ROOT / name, other / name)
        shutil.copy(ROOT / "main.py", other)
        with (other / "big_align/losses/contrastive.py").open("a") as file:
            file.write("\n# changed\n")
        return Processes(folder / "run", *FLAGS, own_folders={1: other}, whole=True)


class DifferingDevices(Fault):
    title = "two devices in process 1, one in process 0"
    seconds = 60
    messages = (r"error: process 1 has number of devices = 2, process 0 has 1",) * 2

    def start(self, folder):
        own = {1: {"XLA_FLAGS": environment(devices=2)["XLA_FLAGS"]}}
        return Processes(folder / "run", *FLAGS, own_variables=own)


class DifferingCompilerFlag(Fault):
    title = "another flag of XLA in process 1"
    seconds = 60
    messages = (
        r"error: process 1 has XLA_FLAGS --xla_cpu_enable_fast_math = true, "
        "process 0 has nothing",
    ) * 2

    def start(self, folder):
        flags = f"{environment(devices=1)['XLA_FLAGS']} --xla_cpu_enable_fast_math=true"
        return Processes(folder / "run", *FLAGS, own_variables={1: {"XLA_FLAGS": flags}})


class ToldAtStart(Fault):
    title = "SIGTERM to both while they import"
    whole, number = True, signal.SIGTERM
    statuses = (75, 75)
    messages = ("stopped on request; the same command continues",) * 2

    def strike(self, processes):
        time.sleep(2)  # tests/parallel/distributed/test_starts.py has every moment
        for process in processes.processes:
            process.send_signal(self.number)


class InterruptedAtStart(ToldAtStart):
    title = "SIGINT to both while they import"
    number = signal.SIGINT


class MissingShard(Fault):
    title = "a shard that process 1 does not find"
    seconds = 90
    messages = (
        r"error: process 1 failed: config\.data\.source: .*train-1\.tar.*",
        r"error: config\.data\.source: .*train-1\.tar.*",
    )

    def start(self, folder):
        members = [
            (f"{number:04}.{kind}", data)
            for number, (label, image) in enumerate(draw_digits(64))
            for kind, data in (
                ("png", image),
                ("txt", DIGIT_TEMPLATES[0].format(DIGIT_CLASSES[label]).encode()),
            )
        ]
        hosts = make_hosts(folder)
        for number, host in hosts.items():
            for shard in range(2 - number):
                write_tar(host / f"train-{shard}.tar", members)
        source = "--config.data.source={'name': 'tar', 'path': 'train-{0..1}.tar'}"
        return Processes(folder / "run", *FLAGS, source, own_folders=hosts)


class DifferingVocabulary(Fault):
    title = "another vocabulary in process 1"
    seconds = 60
    messages = (
        r"error: process 1 has fingerprint of tokenizer = \S+, process 0 has \S+; "
        "all hosts must read the same files",
    ) * 2

    def start(self, folder):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "digit", "photo", "of"]
        hosts = make_hosts(folder)
        for number, host in hosts.items():
            here = pieces + ["one", "two"][:: -1 if number else 1]
            (host / "vocabulary.txt").write_text("\n".join(here))
        node = {"name": "wordpiece", "vocabulary": "vocabulary.txt", "length": 12}
        flag = f"--config.tokenizer={node}"
        return Processes(folder / "run", *FLAGS, flag, own_folders=hosts)


class DifferingTexts(Fault):
    title = "other texts of an evaluator in process 1"
    seconds = 90
    messages = (
        r"error: process 1 has texts to embed = 1 with tokens of CRC \w+, "
        r"process 0 has 1 with tokens of CRC \w+; all hosts must read the same files",
    ) * 2

    def start(self, folder):
        node = {"own": {"name": "tests.parallel.distributed.differing_texts:DifferingTexts"}}
        return Processes(folder / "run", f"--config.evaluators={node}", "--config.total_steps=2")


class InjectedError(Fault):
    title = "an exception in process 1"
    messages = ("error: process 1 failed: RuntimeError: injected", "RuntimeError: injected")
    fault = "fail"

    def start(self, folder):
        config = f"tests/faulty_config.py:{self.fault}"
        self.struck = folder / "run" / "fault"
        return Processes(folder / "run", *FLAGS, config=config, whole=self.whole)

    def strike(self, processes):
        while not self.struck.exists():
            time.sleep(0.05)


class Hanging(InjectedError):
    title = "SIGSTOP to process 1"
    fault = "SIGSTOP"
    seconds = 60
    statuses = (1, -signal.SIGKILL)  # by the test: a stopped process cannot leave
    report = r"step \d+ takes \d+ s so far(.*\n)+ +1 .* \w+ for \d+ s; silent for \d+ s\n"
    messages = ("error: process 1 failed: no sign of life for 30 s; .*", ".*")


class FailingDisk(Fault):
    """The disk of one process; the faults are those of tests/faulty_disk_config.py."""

    title = "process 1 cannot write its part of any checkpoint (EIO)"
    process, fault, times = 1, "EIO", 0
    seconds = 60
    statuses = (1, 1)
    flags: tuple[str, ...] = ()
    reason = "Input/output error"

    @property
    def messages(self):
        return (
            rf"error: process {self.process} could not write to \S+/run/checkpoints: a checkpoint "
            rf"was not saved \({self.reason}\); there is none yet\. The same command goes on from "
            "there",
        ) * len(self.statuses)

    def start(self, folder):
        self.struck = folder / "run" / "fault"
        config = f"tests/faulty_disk_config.py:{self.process},{self.fault},{self.times}"
        count = len(self.statuses)
        return Processes(folder / "run", *FLAGS, *self.flags, config=config, count=count)

    def strike(self, processes):
        while not self.struck.exists():
            assert all(process.poll() is None for process in processes.processes)
            time.sleep(0.05)


class FirstDiskFull(FailingDisk):
    title = "the disk of process 0 is full (ENOSPC) for all that it writes in the background"
    process, fault, reason = 0, "ENOSPC", "No space left on device"


class StaleHandle(FailingDisk):
    title = "process 1 can create no file in the folder of checkpoints (ESTALE)"
    fault, reason = "probe_ESTALE", "Stale file handle"


class ReadOnlyWorkdir(FailingDisk):
    title = "a workdir that process 1 cannot write (EROFS)"
    fault = "start_EROFS"
    seconds = 90
    messages = (r"error: process 1 cannot write to \S+/run \(Read-only file system\)",) * 2

    def strike(self, processes):
        """It is there from the start."""


class StallingDisk(FailingDisk):
    title = "a disk that stalls as process 1 saves, with a deadline of 10 s"
    fault, flags = "stall", ("--config.checkpoint.deadline=10",)

    @property
    def messages(self):
        return (
            rf"error: process {self.process} did not finish saving step 4 to \S+/run/checkpoints "
            r"within 10 s \(config\.checkpoint\.deadline\)",
        ) * len(self.statuses)


class FirstStalls(StallingDisk):
    title = "the same as process 0 saves"
    process = 0


class ProbeStalls(StallingDisk):
    title = "the same before process 1 begins to save"
    fault = "probe_stall"


class RecoveringDisk(FailingDisk):
    title = "process 1 cannot write its part of two checkpoints (EIO), then it can"
    times, flags = 2, ("--config.total_steps=16",)
    statuses = (0, 0)
    seconds = 60
    report = r"process 1 could not write .* Saving is tried again \(2 of 3 failed\)\n"
    messages = (r"(?s).*",) * 2


class Paused(Fault):
    title = "SIGSTOP to process 1 for 45 s"
    whole, process = True, 1
    pause = 45
    seconds = 90
    messages = (
        "error: process 1 failed: no sign of life for 30 s; .*",
        r"error: process 1 failed: it was stopped for \d+ s, .*",
    )

    def strike(self, processes):
        processes.wait_for_step(8)
        struck = processes.processes[self.process]
        struck.send_signal(signal.SIGSTOP)
        threading.Timer(self.pause, struck.send_signal, (signal.SIGCONT,)).start()


class CoordinatorPaused(Paused):
    title = "SIGSTOP to process 0 for 130 s"  # JAX notices after 100 s
    process = 0
    pause = 130
    seconds = 200
    messages = (
        r"error: process 0 failed: it was stopped for \d+ s, .*",
        "error: process 0 failed: it was killed or stopped, or its host is gone",
    )


class Killed(Fault):
    title = "SIGKILL of process 1"
    process, number = 1, signal.SIGKILL
    seconds = 60
    statuses = (1, -signal.SIGKILL)
    messages = ("error: process 1 failed: no sign of life for 30 s; .*", ".*")

    def strike(self, processes):
        processes.wait_for_step(8)
        processes.processes[self.process].send_signal(self.number)


class CoordinatorKilled(Killed):
    title = "SIGKILL of process 0"
    process = 0
    statuses = (-signal.SIGKILL, 1)
    messages = (".*", "error: process 0 failed: it was killed or stopped, or its host is gone")


class ToldToStop(Killed):
    title = "SIGTERM to process 1"
    number = signal.SIGTERM
    statuses = (75, 75)
    messages = (r"stopped on request after step \d+; the same command continues", ".*")


class OneOfFourFails(FailingDisk):
    title = "process 3 of four cannot write its part of any checkpoint (EIO)"
    process, statuses = 3, (1,) * 4
    seconds = 120


class FirstOfFourFull(FirstDiskFull):
    title = "the same on four processes"
    statuses = (1,) * 4
    seconds = 120


class OneOfFourStalls(StallingDisk):
    title = "a disk that stalls as process 2 of four saves, with a deadline of 10 s"
    process, statuses = 2, (1,) * 4
    seconds = 120


QUICK = (DifferingSeed, InjectedError)
DISKS = (
    ReadOnlyWorkdir, FailingDisk, FirstDiskFull, StaleHandle, RecoveringDisk, StallingDisk,
    FirstStalls, ProbeStalls, OneOfFourFails, FirstOfFourFull, OneOfFourStalls,
)  # fmt: skip
SLOW = (
    DifferingCode, DifferingVocabulary, DifferingTexts, MissingShard, ToldToStop, Killed,
    CoordinatorKilled, Hanging, Paused, CoordinatorPaused, DifferingDevices, DifferingCompilerFlag,
    ToldAtStart, InterruptedAtStart, *DISKS,
)  # fmt: skip


def suffer(fault: Fault, folder: pathlib.Path) -> tuple[list[int], list[float], list[str]]:
    """Lets a fault happen; returns each process's status, seconds to its end, and output."""
    processes = fault.start(folder)
    fault.strike(processes)
    start, seconds = time.monotonic(), [float("nan")] * len(processes.processes)
    running = dict(enumerate(processes.processes))
    while running and time.monotonic() < start + fault.seconds:
        for number, process in list(running.items()):
            if process.poll() is not None:
                seconds[number] = time.monotonic() - start
                del running[number]
        time.sleep(0.05)
    for process in running.values():
        process.kill()
    return processes.wait(), seconds, processes.outputs


def last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "")


@pytest.mark.parametrize(
    "fault", [*QUICK, *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW)]
)
@pytest.mark.slow
def test_all_processes_leave_with_the_reason(fault, tmp_path):
    struck = fault()
    statuses, _, outputs = suffer(struck, tmp_path)
    assert tuple(statuses) == fault.statuses
    for pattern, output in zip(struck.messages, outputs, strict=True):
        assert re.fullmatch(pattern, last_line(output)), output
    assert re.search(fault.report, outputs[0]), outputs[0]


def main() -> None:
    """Prints the table."""
    print("| fault | process 0 | process 1 | ... |\n|---|---|---|---|")
    for fault in (*QUICK, *SLOW):
        if sys.argv[1:] and fault.__name__ not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows = zip(*suffer(fault(), pathlib.Path(folder)), strict=True)
        cells = [f"{last_line(text)} ({status}, {seconds:.1f} s)" for status, seconds, text in rows]
        print(f"| {fault.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
