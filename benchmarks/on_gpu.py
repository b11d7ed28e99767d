"""Everything that a GPU shows about this package, in a quarter of an hour, the most telling first.

    python benchmarks/on_gpu.py [--seconds=780] [--output=on_gpu.json]
    python benchmarks/on_gpu.py --resume                     # what was left out or failed
    python benchmarks/on_gpu.py --resume --only=loss_8192_float32      # this again
    python benchmarks/on_gpu.py --output=new.json --compare=on_gpu.json
    python benchmarks/on_gpu.py --only=mlcd_b32 --profile=trace --output=traced.json

It needs jax, flax, optax, jaxtyping and einops, and no TensorFlow; torch, open_clip and memeff are
measured where they are installed. In this order: the rates of a large product and of a copy, which
are the bounds; every way of computing losses and attention against the plain formula; the
contrastive loss and attention, forward and backward; train steps of MLCD and CLIP, against
open_clip's; the largest batch; the quick start, if the whole package is installed.

Contenders take turns in one process, and times are medians over rounds. What fails, crashes or
hangs is noted, and the rest goes on in a new process. The file is written after each measurement;
one that would not end in time is left out, and the last is stopped. `JAX_COMPILATION_CACHE_DIR`
keeps programs from one run to the next. "speed" is against open_clip, or for attention the plain
formula.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.tables import (
    format_all,
    format_comparison,
    format_marks,
    format_row,
    read_rates,
)

PATIENCE, SLACK = 3, 120
"""A measurement may take so many times what is guessed, and so many seconds more."""
QUICK_START, QUICK_START_COST = "quick_start", 60
WHOLE = ("tensorflow_datasets", "clu", "orbax", "ml_collections", "beartype", "PIL")
"""What the program itself needs besides the above."""
QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""How small programs are compiled for a CPU."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "open_clip_torch", "memeff")
START, DEVICE, RESULT = "on_gpu start: ", "on_gpu device: ", "on_gpu result: "
"""How lines of a child begin that are for its parent."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seconds", type=float, default=780, help="when to stop (%(default)s)")
    add("--output", type=pathlib.Path, default=pathlib.Path("on_gpu.json"))
    add(
        "--resume",
        action="store_true",
        help="keep what the file has, and measure the rest, or what --only names",
    )
    add("--compare", type=pathlib.Path, help="the file of another run")
    add("--only", type=lambda text: text.split(","), help="names of measurements")
    add("--tiny", action="store_true", help="sizes for a test on a CPU")
    add(
        "--profile",
        type=lambda text: str(pathlib.Path(text).resolve()),
        metavar="DIR",
        help="trace three calls of ours into a folder, and list the kernels",
    )
    add("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_child() -> int:
    """Runs the measurements that standard input names; prints the result of each as a line."""
    given = json.loads(sys.stdin.read())
    from benchmarks.gpu.calls import explain
    from benchmarks.gpu.measurements import MEASUREMENTS, RATES
    from benchmarks.gpu.session import Session, describe_device
    from benchmarks.gpu.tables import read_rates

    print(DEVICE + json.dumps(describe_device()), flush=True)
    session = Session(given["tiny"], given["rates"], given["profile"])
    for measurement in MEASUREMENTS:
        if measurement.name not in given["names"]:
            continue
        print(START + measurement.name, flush=True)
        left, begin = given["end"] - time.time(), time.time()
        if left < measurement.cost and not given["tiny"]:
            send({"skipped": f"it takes some {measurement.cost:.0f} s, {left:.0f} were left"})
            continue
        try:
            rows = measurement.run(session)
        except Exception as error:
            # What is on the device may be broken: the rest needs a new process.
            send({"failed": explain(error)})
            return 1
        send({"rows": rows, "seconds": time.time() - begin})
        if measurement.name == RATES:
            session.rates = read_rates(rows)
    return 0


def send(result: dict[str, Any]) -> None:
    """Hands the result of a measurement to the parent."""
    print(RESULT + json.dumps(result), flush=True)


class Watch:
    """Kills a process whose kernels hang, or for which there is no time.

    The end, when it has to be over, is as `time.time` counts.
    """

    def __init__(self, process: subprocess.Popen, end: float):
        self.process, self.end = process, end
        self.timer = threading.Timer(0, process.kill)

    def allow(self, seconds: float) -> None:
        """Lets it go on for some seconds from now, but not beyond the end."""
        self.timer.cancel()
        left = max(min(seconds, self.end - time.time()), 0)
        self.timer = threading.Timer(left, self.process.kill)
        self.timer.start()


class Run:
    """A run of the whole benchmark: what was found, and what is left, with costs at a guess."""

    def __init__(self, options: argparse.Namespace, costs: dict[str, float]):
        self.options = options
        self.costs = costs
        self.command = [sys.executable, __file__, "--child"]
        self.end = time.time() + options.seconds
        self.found: dict[str, Any] = {"environment": {}, "measurements": {}}
        if options.resume and options.output.exists():
            self.found = json.loads(options.output.read_text())
        self.found |= {"failed": {}, "skipped": {}}
        self.found["environment"] |= list_versions()

    def write(self) -> None:
        """Writes what was found, whole."""
        path = self.options.output
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(self.found, indent=1) + "\n")
        os.replace(partial, path)

    def take(self, name: str, result: dict[str, Any]) -> None:
        """Keeps the result of a measurement, and prints it."""
        for kind in ("failed", "skipped"):
            if kind in result:
                self.found[kind][name] = result[kind]
                print(f"{name}: {kind}, {result[kind]}", flush=True)
        if "rows" in result:
            done = self.found["measurements"] | {name: result}
            order = [*self.costs, QUICK_START]
            self.found["measurements"] = {each: done[each] for each in order if each in done}
            print("\n".join(map(format_row, result["rows"])), flush=True)
        self.write()

    def measure(self, names: list[str]) -> None:
        """Runs measurements in a process, and what is left in another one if it fails."""
        while names:
            if time.time() >= self.end:
                for name in names:
                    self.take(name, {"skipped": "time was over"})
                return
            stopped = self._run_process(names)
            names = names[names.index(stopped) + 1 :] if stopped else []

    def _run_process(self, names: list[str]) -> str | None:
        """Returns the measurement at which a process ended, None if it came to the last."""
        rates = self.found["measurements"].get("rates", {}).get("rows", [])
        given = {"names": names, "rates": read_rates(rates), "end": self.end}
        given |= {"tiny": self.options.tiny, "profile": self.options.profile}
        environment = dict(os.environ)
        if self.options.tiny:
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICKLY}"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        current, last = names[0], ""
        pipes |= {"text": True, "cwd": ROOT, "env": environment}
        with subprocess.Popen(self.command, **pipes) as process:
            watch = Watch(process, self.end)
            watch.allow(SLACK)
            process.stdin.write(json.dumps(given))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith(START):
                    current = line.removeprefix(START).strip()
                    watch.allow(PATIENCE * self.costs[current] + SLACK)
                    print(f"{current}, {self.end - time.time():.0f} s left", flush=True)
                elif line.startswith(DEVICE):
                    self.found["environment"] |= json.loads(line.removeprefix(DEVICE))
                elif line.startswith(RESULT):
                    self.take(current, json.loads(line.removeprefix(RESULT)))
                else:
                    print(line, end="", flush=True)
                    last = line.strip() or last
            watch.timer.cancel()
        if not process.returncode:
            return None
        known = (self.found[kind] for kind in ("measurements", "failed", "skipped"))
        if not any(current in each for each in known):
            if time.time() >= self.end:
                self.take(current, {"skipped": "time was over"})
            else:  # -9 also if it took too long
                why = f"exit status {process.returncode}; {last[:200]}"
                self.take(current, {"failed": why})
        return current

    def run_quick_start(self) -> None:
        """Trains the quick start with the program itself, where all that it needs is installed."""
        left = self.end - time.time()
        why = f"{left:.0f} s were left" if left < QUICK_START_COST else ""
        if missing := [name for name in WHOLE if importlib.util.find_spec(name) is None]:
            why = f"{', '.join(missing)} not installed"
        if why or self.options.tiny:
            return self.take(QUICK_START, {"skipped": why or "it has one size"})
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "main.py", "--config=configs/quickstart.py"]
            command += [f"--workdir={folder}"]
            begin = time.time()
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, timeout=left
                )
            except subprocess.TimeoutExpired:
                return self.take(QUICK_START, {"skipped": "time was over"})
            seconds = time.time() - begin
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        if done.returncode:
            return self.take(QUICK_START, {"failed": lines[-1] if lines else "no message"})
        row = {"what": "the whole program", "ms": 1e3 * seconds, "last": lines[-1] if lines else ""}
        return self.take(QUICK_START, {"rows": [row], "seconds": seconds})


def list_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def group(names: list[str], apart: set[str], tiny: bool) -> list[list[str]]:
    """Returns which measurements share a process, in order: all that need none of their own."""
    groups: list[list[str]] = []
    for name in names:
        if groups and (tiny or (name not in apart and groups[-1][-1] not in apart)):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def main() -> int:
    """Runs what the command line asks for; returns 1 if anything failed or missed its limit."""
    options = parse_arguments()
    if options.child:
        return run_child()
    from benchmarks.gpu.measurements import MARKS, MEASUREMENTS

    names = [each.name for each in MEASUREMENTS] + [QUICK_START]
    if strange := sorted(set(options.only or ()) - set(names)):
        raise SystemExit(f"--only={strange[0]} is unknown; there are {', '.join(names)}")
    run = Run(options, {each.name: each.cost for each in MEASUREMENTS})
    known = run.found["measurements"]
    wanted = [name for name in names if name in (options.only or names)]
    wanted = [name for name in wanted if options.only or name not in known]
    apart = {each.name for each in MEASUREMENTS if each.apart}
    try:
        for some in group([n for n in wanted if n != QUICK_START], apart, options.tiny):
            run.measure(some)
        if QUICK_START in wanted:
            run.run_quick_start()
    except KeyboardInterrupt:
        print("interrupted; --resume continues")
    print("\n" + "\n".join(format_all(run.found)))
    print("\n".join(format_marks(MARKS, run.found["measurements"])))
    if options.compare:
        print("\n".join(format_comparison(json.loads(options.compare.read_text()), run.found)))
    rows = [row for each in run.found["measurements"].values() for row in each["rows"]]
    fine = all(row.get("met", True) and "failed" not in row for row in rows)
    return int(bool(run.found["failed"]) or not fine)


if __name__ == "__main__":
    sys.exit(main())
