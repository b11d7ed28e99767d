"""A training with huge pages and without, in turn: the whole command, its steps, its memory.

    python benchmarks/huge_pages.py
    python benchmarks/huge_pages.py -- --config=configs/align_flickr8k.py --config.total_steps=60

What comes after -- is passed to main.py. Commands start themselves with huge pages where the system
gives them on request (big_align/core/huge_pages.py); GLIBC_TUNABLES=glibc.malloc.hugetlb=0 keeps
them without. Predicted from the time in the kernel: a step takes two thirds. The bound is the time
outside of the kernel: pages that cost nothing.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import measuring
from benchmarks.measuring import ROOT
from big_align.core.huge_pages import TUNABLE, are_on_request

SIDES = {"4 KiB": 0, "huge": 1}
COLUMNS = ("command (s)", "steps (s)", "in the kernel (CPU s)", "peak memory (MiB)")


def run(flags: list[str], huge: int) -> tuple[float, float, float, float]:
    """Trains once; returns the columns."""
    environment = os.environ | {"GLIBC_TUNABLES": f"{TUNABLE}={huge}"}
    with tempfile.TemporaryDirectory() as workdir, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "main.py", f"--workdir={workdir}/run", *flags]
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
    if status:
        sys.exit(f"failed: {' '.join(command)}\n{text[-2000:]}")
    steps = float(re.search(r"^steps +([\d.]+) s", text, re.MULTILINE)[1])
    return seconds, steps, used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Prints the table."""
    parser = measuring.make_parser(__doc__, rounds=3)
    parser.add_argument("flags", nargs="*", default=["--config=configs/quickstart.py"])
    options = parser.parse_args()
    if not are_on_request():
        sys.exit("this system gives no huge pages on request, so both sides would be the same")
    rows = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side, huge in SIDES.items():
            rows[side].append(run(options.flags, huge))
    medians = {side: np.median(found, axis=0) for side, found in rows.items()}
    medians["ratio"] = medians["huge"] / medians["4 KiB"]
    rows = ([side, *map(float, values)] for side, values in medians.items())
    title = f"{' '.join(options.flags)}, {options.rounds} rounds"
    measuring.print_table(("pages", *COLUMNS), rows, title)


if __name__ == "__main__":
    main()
