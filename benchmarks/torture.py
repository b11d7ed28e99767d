"""Kills a real run again and again, and compares it with one that was never stopped.

It is killed (SIGKILL) at random moments: while it starts, in a step, in a save, in an evaluation;
on 1, 2, 4 and 8 devices and in 2 processes, in turn. Of two processes one is killed, and the other
has to leave by itself. Then every loss is compared, and every step must be in metrics.jsonl and in
TensorBoard's files once.

Another number of devices rounds otherwise, and training makes more of every difference. So a run on
8 devices that was never stopped tells how much: with kills, losses may differ at no step by more
than a few times what rounding has made by then. With --devices, they must be equal bit for bit.

Of a config with several stages (`config.first`), each gets its share of the steps, and about half
of the kills are between a stage's last steps and the first ones of the next.

  python benchmarks/torture.py --workdir=/tmp/torture --kills=100
  python benchmarks/torture.py --config=benchmarks/staged_config.py:3 --workdir=/tmp/torture \\
      --kills=25 --devices=1
"""

import collections
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.measuring import ROOT
from big_align.config.overrides import load_config
from big_align.config.stages import list_stages as stages_of

MACHINES = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2))  # devices, processes
MOMENTS = ("start", "step", "save", "evaluation")
BOUNDARY = "boundary"  # between two stages
BOUNDARY_STEPS = 4  # so many of each stage are near it
BOUNDARY_SECONDS = 25.0  # in which a run that was started near it has passed it
EVALUATE_EVERY = 11
ALONE_SECONDS = 60.0  # within which a process that has lost another has left
FINISH_SECONDS = 1800.0
ROUNDING_DEVICES = 8
ROUNDING = 1e-6  # of a loss, before anything has grown
MOST_TIMES = 5.0  # as far apart as two runs that were never stopped
Losses = list[tuple[int, float]]


class Run:
    """A run in processes of its own, on virtual devices of the CPU."""

    def __init__(self, workdir: pathlib.Path, flags: list[str], devices: int, processes: int):
        self.workdir = workdir
        self.log = tempfile.TemporaryFile("w+")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [sys.executable, str(ROOT / "main.py"), f"--workdir={workdir}", *flags]
        command += ["--distributed"] * (processes > 1)
        self.processes = []
        for number in range(processes):
            options = os.environ.get("XLA_FLAGS", "").split()
            options += [f"--xla_force_host_platform_device_count={devices // processes}"]
            joining = {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": str(processes),
                "JAX_PROCESS_ID": str(number),
            }
            variables = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": " ".join(options),  # the last of two counts
                "JAX_COMPILATION_CACHE_DIR": os.environ.get(
                    "JAX_COMPILATION_CACHE_DIR", str(workdir.parent / "compiled")
                ),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
            variables |= joining if processes > 1 else {}
            output = dict(stdout=self.log, stderr=subprocess.STDOUT)
            self.processes.append(subprocess.Popen(command, cwd=ROOT, env=variables, **output))

    @property
    def ended(self) -> bool:
        return any(process.poll() is not None for process in self.processes)

    @property
    def step(self) -> int:
        return (read_losses(self.workdir) or [(0, 0)])[-1][0]

    def wait_for(self, moment: str, steps: int) -> None:
        """Waits until a kind of moment has come, or the run has ended."""
        if moment == BOUNDARY:
            return self._pass_boundary()
        start, before = time.monotonic(), len(read_losses(self.workdir))
        while not self.ended and time.monotonic() < start + FINISH_SECONDS:
            if moment == "start" and time.monotonic() > start + random.uniform(0, 6):
                return
            new = len(read_losses(self.workdir)) - before
            if moment != "evaluation" and new > 2 * steps:  # the moment has not come
                return
            if moment == "step" and new > steps:
                time.sleep(random.uniform(0, 0.1))
                return
            # Before the first step there may be what the last kill has left.
            if moment == "save" and new > 0 and any(self.workdir.rglob("checkpoints/*tmp*")):
                time.sleep(random.uniform(0, 0.05))
                return
            if moment == "evaluation" and new > 1 and self.step % EVALUATE_EVERY == 0:
                time.sleep(random.uniform(0, 0.3))
                return
            time.sleep(0.005)

    def _pass_boundary(self) -> None:
        """Waits until a run is near a boundary, and then for a while, if it is still near."""
        while not self.ended and not is_near_boundary(self.workdir):
            time.sleep(0.02)
        end = time.monotonic() + random.uniform(0, BOUNDARY_SECONDS)
        while not self.ended and time.monotonic() < end and is_near_boundary(self.workdir):
            time.sleep(0.02)

    def kill(self, moment: str) -> float:
        """Kills one process; returns how long the others have stayed.

        At the start all are killed: until they have found each other they wait, since hosts come
        one by one.
        """
        for process in self.processes if moment == "start" else [random.choice(self.processes)]:
            process.send_signal(signal.SIGKILL)
        start = time.monotonic()
        for process in self.processes:
            process.wait(timeout=5 * ALONE_SECONDS)
        return time.monotonic() - start

    def finish(self) -> int:
        """Returns the first status that is not 0, or 0."""
        statuses = [process.wait(timeout=FINISH_SECONDS) for process in self.processes]
        return next(filter(None, statuses), 0)

    def read_log(self) -> str:
        self.log.seek(0)
        return self.log.read()


def list_stages(workdir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the workdirs of all stages, the earliest first."""
    before = workdir / "first"
    return [*(list_stages(before) if before.is_dir() else ()), workdir]


def list_begun(workdir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the workdirs of the stages that have logged a step, and at least one."""
    return [stage for stage in list_stages(workdir) if read_own_losses(stage)] or [workdir]


def is_near_boundary(workdir: pathlib.Path) -> bool:
    """Returns whether a run is at the end of a stage, or at the beginning of another."""
    config, totals = workdir / "config.json", []
    node = json.loads(config.read_text()) if config.exists() else {}
    while node:
        totals, node = [node["total_steps"], *totals], node["first"]
    done = len(read_losses(workdir))
    return any(abs(done - edge) <= BOUNDARY_STEPS for edge in itertools.accumulate(totals[:-1]))


def read_losses(workdir: pathlib.Path) -> Losses:
    """Returns step and loss of every line of training, stage by stage and in their order."""
    return [each for stage in list_stages(workdir) for each in read_own_losses(stage)]


def read_own_losses(workdir: pathlib.Path) -> Losses:
    """Returns step and loss of every line of training of one stage."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:  # the end of a line that is being written
            continue
    return [(each["step"], each["loss"]) for each in records if "loss" in each]


def read_tensorboard(workdir: pathlib.Path) -> collections.Counter:
    """Counts how often each step of each stage has a loss in the event files."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    counts = collections.Counter()
    for number, stage in enumerate(list_stages(workdir), 1):
        for path in stage.glob("events.out.tfevents.*"):
            for event in EventFileLoader(str(path)).Load():
                tags = [value.tag for value in event.summary.value]
                counts.update([(number, event.step)] * ("loss" in tags))
    return counts


def find_differences(expected: Losses, found: Losses) -> list[float]:
    """Returns for each step the largest relative difference of a loss until then."""
    pairs = zip(expected, found, strict=False)
    return list(itertools.accumulate((abs(a - b) / abs(a) for (_, a), (_, b) in pairs), max))


def find_excess(expected: Losses, found: Losses, rounded: Losses | None) -> str:
    """Tells where losses differ by more than rounding explains; "" if they nowhere do."""
    differences = find_differences(expected, found)
    print(f"largest relative difference of a loss: {differences[-1]:.1e}")
    if rounded is None:
        return f"losses differ by {differences[-1]:.1e}" if differences[-1] else ""
    explained = find_differences(expected, rounded)
    print(f"of a run on {ROUNDING_DEVICES} devices, never stopped: {explained[-1]:.1e}")
    ratios = [a / (b + ROUNDING) for a, b in zip(differences, explained, strict=False)]
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    print(f"at no step more than {ratios[worst]:.1f} times as much as there")
    if ratios[worst] <= MOST_TIMES:
        return ""
    return f"losses differ by {differences[worst]:.1e} at step {expected[worst][0]}"


def compare(whole: pathlib.Path, tortured: pathlib.Path, rounded: pathlib.Path | None) -> list[str]:
    """Lists what differs between the two runs; with `rounded`, by more than rounding explains."""
    faults = []
    expected, found = read_losses(whole), read_losses(tortured)
    steps = [
        (number, step)
        for number, stage in enumerate(list_stages(whole), 1)
        for step, _ in read_own_losses(stage)
    ]
    if [step for step, _ in found] != [step for _, step in steps]:
        faults.append(f"metrics.jsonl has {len(found)} steps, not {len(expected)} once each")
    if excess := find_excess(expected, found, read_losses(rounded) if rounded else None):
        faults.append(excess)
    for name in ("missing", "double"):
        counts = read_tensorboard(tortured)
        wrong = {
            "missing": [step for step in steps if not counts[step]],
            "double": [step for step, count in counts.items() if count > 1],
        }[name]
        if wrong:
            faults.append(f"TensorBoard: {len(wrong)} steps {name}, {wrong[0]} the first")
    folders = [stage / "checkpoints" for stage in list_stages(tortured)]
    left = [x.name for folder in folders for x in folder.iterdir() if not x.name.isdigit()]
    if left:
        faults.append(f"left in checkpoints: {', '.join(sorted(left))}")
    return faults


def run_whole(workdir: pathlib.Path, flags: list[str], devices: int, processes: int) -> None:
    """Runs without a kill."""
    run = Run(workdir, flags, devices, processes)
    if run.finish():
        sys.exit(f"the run that nobody stops has failed:\n{run.read_log()[-2000:]}")


def main() -> None:
    """Prints a line a kill, and what differs."""
    given = dict(config="configs/quickstart.py", kills=100, seed=0)
    parser = measuring.make_parser(__doc__, **given)
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--steps_between", type=int, default=12, help="average steps between kills")
    parser.add_argument(
        "--devices", type=int, default=0, help="always use this many devices, in one process"
    )
    given, flags = parser.parse_known_args()
    random.seed(given.seed)
    machines = [(given.devices, 1)] if given.devices else MACHINES
    stages = len(stages_of(load_config(given.config)))
    total = given.kills * given.steps_between
    fields = {
        "total_steps": total // stages,
        "checkpoint.every": 3,
        "evaluate_every": EVALUATE_EVERY,
        "log_every": 1,
    }
    flags = [
        f"--config={given.config}",
        *(f"--config.{'first.' * n}{k}={x}" for n in range(stages) for k, x in fields.items()),
        *flags,
    ]
    shutil.rmtree(given.workdir, ignore_errors=True)
    whole, tortured = given.workdir / "whole", given.workdir / "tortured"
    rounded = None if given.devices else given.workdir / "rounded"
    start = time.monotonic()
    run_whole(whole, flags, *machines[0])
    print(f"never stopped: {total} steps in {time.monotonic() - start:.0f} s", flush=True)
    if rounded:
        run_whole(rounded, flags, ROUNDING_DEVICES, 1)
    start = time.monotonic()
    kills, alone = 0, []
    while kills < given.kills:
        devices, processes = machines[kills % len(machines)]
        near = stages > 1 and is_near_boundary(tortured)
        ahead = [BOUNDARY] * len(MOMENTS) * (len(list_begun(tortured)) < stages)
        moment = BOUNDARY if near and random.random() < 0.7 else random.choice([*MOMENTS, *ahead])
        run = Run(tortured, flags, devices, processes)
        run.wait_for(moment, random.randint(0, 2 * given.steps_between))
        if run.ended:
            if status := run.finish():
                sys.exit(f"status {status} without a kill:\n{run.read_log()[-2000:]}")
            break
        stayed = run.kill(moment)
        kills += 1
        alone += [stayed] * (processes > 1)
        where = f"{devices} devices, {processes} processes, step {run.step}"
        where += f" of stage {len(list_begun(tortured))}" if stages > 1 else ""
        print(f"kill {kills:3d}: {moment:10s} {where}", flush=True)
    run = Run(tortured, flags, *machines[0])
    if status := run.finish():
        sys.exit(f"status {status} at the end:\n{run.read_log()[-2000:]}")
    print(f"{kills} kills in {time.monotonic() - start:.0f} s")
    if alone:
        print(f"a process that has lost the other leaves within {max(alone):.0f} s")
    faults = compare(whole, tortured, rounded)
    faults += ["a process stayed too long"] * (max(alone, default=0) > ALONE_SECONDS)
    print("\n".join(faults) or "every step once, in metrics.jsonl and in TensorBoard")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
