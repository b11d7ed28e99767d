"""Memory, descriptors and threads of a long run: what grows with the steps would end it some day.

The run has short steps, evaluates and saves every 200, and decodes in two processes. Its C library
gives freed memory back at once, so what is counted is in use, and no slack. Predicted: flat after
the first tenth.

  python benchmarks/long_run.py --workdir=/tmp/long_run --steps=20000
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.measuring import ROOT

GROWTH = 0.05  # of the memory, from the first tenth to the end
# By default the limits grow with what is freed, and hundreds of MiB stay.
AT_ONCE = "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072"


def read_step(workdir: pathlib.Path) -> int:
    """Returns the newest step that is logged."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        for line in reversed(file.read().splitlines()):
            try:
                return json.loads(line)["step"]
            except (ValueError, KeyError):
                continue
    return 0


def measure(pid: int) -> dict[str, float]:
    """Returns MiB of memory, open files and threads of a process and its children."""
    total = {"processes": 0, "MiB": 0.0, "files": 0, "threads": 0}
    for each, facts in measuring.read_family(pid).items():
        with contextlib.suppress(OSError):  # it has just ended
            total["files"] += len(os.listdir(f"/proc/{each}/fd"))
            total["processes"] += 1
            total["MiB"] += int(facts["VmRSS"].split()[0]) / 1024
            total["threads"] += int(facts["Threads"])
    return total


def main() -> None:
    """Prints a line a tenth of the run, and whether anything has grown."""
    parser = measuring.make_parser(__doc__, steps=20_000)
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    given, flags = parser.parse_known_args()
    command = [
        *(sys.executable, str(ROOT / "main.py"), f"--config={ROOT}/configs/quickstart.py"),
        *(f"--workdir={given.workdir}", f"--config.total_steps={given.steps}"),
        *("--config.evaluate_every=200", "--config.checkpoint.every=200"),
        *("--config.log_every=10", "--config.batch_size=16", "--config.data.num_processes=2"),
        *flags,
    ]
    rows = []
    with open(given.workdir.with_suffix(".log"), "w") as log:
        environment = os.environ | {"GLIBC_TUNABLES": f"{AT_ONCE}:glibc.malloc.hugetlb=0"}
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        while run.poll() is None:
            step = read_step(given.workdir)
            if step >= (len(rows) + 1) * given.steps // 10 and len(rows) < 10:
                # Between two evaluations, where every tenth is alike.
                found = measure(run.pid)
                rows.append(found)
                shown = ", ".join(f"{value:.0f} {name}" for name, value in found.items())
                print(f"step {step}: {shown}", flush=True)
            time.sleep(0.05)
    if run.returncode or len(rows) < 9:
        sys.exit(f"the run ended with {run.returncode}; see {log.name}")
    first, last = rows[0], rows[-2]  # the last may already be ending
    grown = [
        f"{name}: {first[name]:.0f} -> {last[name]:.0f}"
        for name in first
        if last[name] > first[name] * (1 + GROWTH) + (name != "MiB") * 2
    ]
    print("\n".join(grown) or "nothing has grown")
    sys.exit(bool(grown))


if __name__ == "__main__":
    main()
